// SPDX-License-Identifier: Apache-2.0
#ifndef OGF_IMPORTS_H
#define OGF_IMPORTS_H

#include <stddef.h>

/* A function that libraries import, and what they shall call instead. */
struct ogf_import {
	const char *name;
	void *replacement;
};

/*
 * Changes the slots through which loaded libraries call the functions: those of the library with this
 * path, or of all. Slots that are read-only after start-up (RELRO) are so again afterwards.
 *
 * Returns the number of slots changed, or a negative errno.
 */
int ogf_replace_imports(const char *library, const struct ogf_import *imports, size_t count);

#endif
