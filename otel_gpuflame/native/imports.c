// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "imports.h"

#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
enum { CALL_SLOT = R_X86_64_JUMP_SLOT, ADDRESS_SLOT = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { CALL_SLOT = R_AARCH64_JUMP_SLOT, ADDRESS_SLOT = R_AARCH64_GLOB_DAT };
#else
#error "the relocations of this architecture are not known"
#endif

struct search {
	const char *library;
	const struct ogf_import *imports;
	size_t count;
	int changed;
	int error;
};

/* What the dynamic section of a loaded library says. Addresses are absolute. */
struct loaded {
	const ElfW(Rela) * relocations[2];
	size_t sizes[2];
	const ElfW(Sym) * symbols;
	const char *names;
	uintptr_t relro_begin, relro_end;
};

/* glibc has made most addresses in the section absolute; those of the vDSO it leaves as they are. */
static uintptr_t absolute(const struct dl_phdr_info *info, ElfW(Addr) address)
{
	return address < info->dlpi_addr ? address + info->dlpi_addr : address;
}

static void read_dynamic(const struct dl_phdr_info *info, const ElfW(Dyn) * entry, struct loaded *ret)
{
	for (; entry->d_tag != DT_NULL; entry++) {
		switch (entry->d_tag) {
		case DT_RELA:
			ret->relocations[0] = (const ElfW(Rela) *)absolute(info, entry->d_un.d_ptr);
			break;
		case DT_RELASZ:
			ret->sizes[0] = entry->d_un.d_val;
			break;
		case DT_JMPREL:
			ret->relocations[1] = (const ElfW(Rela) *)absolute(info, entry->d_un.d_ptr);
			break;
		case DT_PLTRELSZ:
			ret->sizes[1] = entry->d_un.d_val;
			break;
		case DT_SYMTAB:
			ret->symbols = (const ElfW(Sym) *)absolute(info, entry->d_un.d_ptr);
			break;
		case DT_STRTAB:
			ret->names = (const char *)absolute(info, entry->d_un.d_ptr);
			break;
		default:
			break;
		}
	}
}

static struct loaded describe(const struct dl_phdr_info *info)
{
	struct loaded ret = {0};

	for (size_t i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *header = &info->dlpi_phdr[i];
		uintptr_t begin = info->dlpi_addr + header->p_vaddr;

		if (header->p_type == PT_DYNAMIC) {
			read_dynamic(info, (const ElfW(Dyn) *)begin, &ret);
		} else if (header->p_type == PT_GNU_RELRO) {
			ret.relro_begin = begin;
			ret.relro_end = begin + header->p_memsz;
		}
	}
	return ret;
}

static int write_slot(const struct loaded *loaded, void **slot, void *value)
{
	uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t page = (uintptr_t)slot & ~(size - 1);
	/* The loader protects whole pages, except for a last one that the region does not fill. */
	bool read_only = page >= (loaded->relro_begin & ~(size - 1)) && page + size <= loaded->relro_end;

	if (read_only && mprotect((void *)page, size, PROT_READ | PROT_WRITE) != 0)
		return -errno;
	__atomic_store_n(slot, value, __ATOMIC_RELEASE);
	if (read_only && mprotect((void *)page, size, PROT_READ) != 0)
		return -errno;
	return 0;
}

static void *replacement_of(const struct search *search, const char *name)
{
	for (size_t i = 0; i < search->count; i++)
		if (strcmp(search->imports[i].name, name) == 0)
			return search->imports[i].replacement;
	return NULL;
}

static void replace_in(struct search *search, uintptr_t base, const struct loaded *loaded, int table)
{
	size_t count = loaded->sizes[table] / sizeof(ElfW(Rela));

	for (size_t i = 0; i < count && search->error == 0; i++) {
		const ElfW(Rela) *relocation = &loaded->relocations[table][i];
		unsigned int kind = ELF64_R_TYPE(relocation->r_info);
		void **slot = (void **)(base + relocation->r_offset);
		const ElfW(Sym) * symbol;
		void *replacement;

		if (kind != CALL_SLOT && kind != ADDRESS_SLOT)
			continue;
		symbol = &loaded->symbols[ELF64_R_SYM(relocation->r_info)];
		replacement = replacement_of(search, loaded->names + symbol->st_name);
		if (!replacement || *slot == replacement)
			continue;
		search->error = write_slot(loaded, slot, replacement);
		search->changed += search->error == 0;
	}
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
	struct search *search = data;
	struct loaded loaded;

	(void)size;
	if (search->library && strcmp(search->library, info->dlpi_name) != 0)
		return 0;
	loaded = describe(info);
	if (!loaded.symbols || !loaded.names)
		return 0;
	for (int table = 0; table < 2; table++)
		if (loaded.relocations[table])
			replace_in(search, info->dlpi_addr, &loaded, table);
	return search->error;
}

int ogf_replace_imports(const char *library, const struct ogf_import *imports, size_t count)
{
	struct search search = {.library = library, .imports = imports, .count = count};

	dl_iterate_phdr(visit, &search);
	return search.error ? search.error : search.changed;
}
