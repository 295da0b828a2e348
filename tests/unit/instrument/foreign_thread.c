// SPDX-License-Identifier: Apache-2.0
/* A thread that Python did not make: it calls back, each time with a Python state of its own. */
#include <pthread.h>

static void *run(void *call)
{
	for (int turn = 0; turn < 2; turn++)
		((void (*)(int))call)(turn);
	return NULL;
}

int call_twice(void (*call)(int))
{
	pthread_t thread;
	int err = pthread_create(&thread, NULL, run, (void *)call);

	return err ? err : pthread_join(thread, NULL);
}
