/* SPDX-License-Identifier: Apache-2.0 */
/* Runs `writer_main` of a library that it opens. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *library = dlopen(LIBRARY, RTLD_NOW);
	int (*run)(int, char **) = library ? (int (*)(int, char **))dlsym(library, "writer_main") : NULL;

	if (!run) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	return run(argc, argv);
}
