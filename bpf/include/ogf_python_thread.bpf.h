/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which PyThreadState the current thread has. */
#ifndef OGF_PYTHON_THREAD_BPF_H
#define OGF_PYTHON_THREAD_BPF_H

#include "ogf_arch.bpf.h"
#include "ogf_maps.bpf.h"

enum {
	/* At a time; the next call goes on from there. The main thread is the last one. 1024 would add 0.1 s to
	   loading. */
	OGF_MAX_THREADS_SEARCHED = 512,
	/* Other interpreters than main, and threads of each, newest first: there is one more for each time that it is
	   entered. */
	OGF_MAX_OTHER_INTERPRETERS = 16,
	OGF_MAX_THREADS_OF_OTHERS = 2,
	OGF_NO_THREAD_NS = 100000000, /* then look once more, however little seems to have changed */
};

/* What is known of the PyThreadState of a thread. */
struct ogf_python_search {
	__u64 found; /* its address; checked against the thread pointer before use */
	__u64 next;  /* where to go on searching; 0: from the head of the list */
	/* How the list began when it was searched in vain: new threads come first. */
	__u64 head;
	__u64 head_id;
	__u64 failed_ns; /* when the end was reached; 0: not yet */
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, __u32);
	__type(value, struct ogf_python_search);
	__uint(max_entries, 16384);
} python_threads SEC(".maps");

/*
 * Search at most OGF_MAX_THREADS_SEARCHED threads of the list, from search->next on; whether the thread was found.
 * Otherwise search->next is where to go on, 0 after the end or where the list could not be read.
 */
static __always_inline bool ogf_search_threads(const struct ogf_python_layout *layout, __u64 thread_pointer,
					       struct ogf_python_search *search)
{
	__u64 thread = search->next, id = 0;

	search->next = 0;
	for (int i = 0; i < OGF_MAX_THREADS_SEARCHED; i++) {
		if (!thread) {
			search->failed_ns = bpf_ktime_get_ns();
			return false;
		}
		if (ogf_read_u64(thread + layout->thread_id, &id))
			return false;
		if (id == thread_pointer) {
			search->found = thread;
			return true;
		}
		if (ogf_read_u64(thread + layout->thread_next, &thread))
			return false;
	}
	search->next = thread;
	return false;
}

/*
 * PyThreadState of the current thread, or 0 and why in ret_state. thread_id is pthread_self(), which is the thread
 * pointer. A thread that has none would search the whole list with each call: it is spared that until the list begins
 * with another one. A search of a long list is spread over several calls.
 *
 * Threads of C++ that call Python get a PyThreadState each time, often where the last one was: from 3.11 on the word
 * before the list's head counts them. In 3.10 another word is there, which does not change.
 */
static __always_inline __u64 ogf_find_python_thread(const struct ogf_python_layout *layout, __u64 thread_pointer,
						    __u8 *ret_state)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();
	struct ogf_python_search *known = bpf_map_lookup_elem(&python_threads, &tid), search = {};
	__u64 interpreters[2] = {}, threads[2] = {}, head, id = 0;

	if (known && known->found && !ogf_read_u64(known->found + layout->thread_id, &id) && id == thread_pointer)
		return known->found;
	*ret_state = OGF_PYTHON_NO_THREAD;
	/* head is the newest interpreter; main lies behind it in 3.10 to 3.14, and has nearly all threads. */
	if (bpf_probe_read_user(interpreters, sizeof(interpreters), (void *)layout->interpreters_head) ||
	    !interpreters[1] ||
	    bpf_probe_read_user(threads, sizeof(threads),
				(void *)(interpreters[1] + layout->interpreter_threads_head - sizeof(*threads))) ||
	    !threads[1])
		return 0;
	head = threads[1];
	if (ogf_read_u64(head + layout->thread_id, &id))
		id = 0;
	id += threads[0];
	if (known && !known->found && known->head == head && known->head_id == id) {
		if (known->failed_ns && bpf_ktime_get_ns() - known->failed_ns < OGF_NO_THREAD_NS)
			return 0;
		search.next = known->next;
	}
	search.head = head;
	search.head_id = id;
	if (!search.next)
		search.next = head;
	if (!ogf_search_threads(layout, thread_pointer, &search) && !search.failed_ns)
		*ret_state = OGF_PYTHON_NOT_FOUND;
	bpf_map_update_elem(&python_threads, &tid, &search, BPF_ANY);
	return search.found;
}

/* The innermost frame of a PyThreadState, which may be 0; not 0 is returned where it cannot be read. */
static __always_inline long ogf_read_frame_of(const struct ogf_python_layout *layout, __u64 thread, __u64 *ret_frame)
{
	if (ogf_read_u64(thread + layout->thread_frame, ret_frame))
		return -1;
	return layout->has_cframe && (!*ret_frame || ogf_read_u64(*ret_frame + layout->cframe_frame, ret_frame)) ? -1
														 : 0;
}

/*
 * The innermost frame of the current thread in another interpreter than main; 0: it is in none. It has a PyThreadState
 * in each interpreter that it is in, and has called from frames of main.
 */
static __always_inline __u64 ogf_find_other_frame(const struct ogf_python_layout *layout, __u64 thread_pointer)
{
	__u64 interpreters[2] = {}, thread = 0, id = 0, frame = 0;

	if (bpf_probe_read_user(interpreters, sizeof(interpreters), (void *)layout->interpreters_head))
		return 0;
	for (int i = 0; i < OGF_MAX_OTHER_INTERPRETERS; i++) {
		if (!interpreters[0] || interpreters[0] == interpreters[1] ||
		    ogf_read_u64(interpreters[0] + layout->interpreter_threads_head, &thread))
			return 0;
		for (int j = 0; j < OGF_MAX_THREADS_OF_OTHERS; j++) {
			if (!thread || ogf_read_u64(thread + layout->thread_id, &id))
				break;
			if (id == thread_pointer && !ogf_read_frame_of(layout, thread, &frame) && frame)
				return frame;
			if (ogf_read_u64(thread + layout->thread_next, &thread))
				break;
		}
		if (ogf_read_u64(interpreters[0] + layout->interpreter_next, &interpreters[0]))
			return 0;
	}
	return 0;
}

#endif
