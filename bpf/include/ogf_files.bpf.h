/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the current process has open. */
#ifndef OGF_FILES_BPF_H
#define OGF_FILES_BPF_H

#include "ogf_core.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

/* The file behind a descriptor, or NULL. Another thread may be changing the table: its last state may be read. */
static __always_inline struct file *ogf_open_file(__u32 fd)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task_btf();
	struct file **files = NULL, *file = NULL;

	if (fd >= BPF_CORE_READ(task, files, fdt, max_fds))
		return NULL;
	files = BPF_CORE_READ(task, files, fdt, fd);
	if (bpf_probe_read_kernel(&file, sizeof(file), files + fd))
		return NULL;
	return file;
}

#endif
