// SPDX-License-Identifier: Apache-2.0
/*
 * Which calls of the driver get a record of their own: all that give a device work, so that each execution finds
 * its launch. CUPTI gives none when the first call is enabled after cuInit (measured with 13.0).
 */
#include <stdlib.h>
#include <string.h>

#include "cupti.h"
#include "inject.h"

/* CUpti_driver_api_trace_cbid, first to last. A version that does not know a call refuses it, and has no such call. */
static const struct {
	uint16_t first, last;
} calls[] = {
	{216, 216}, /* cuMemsetD8Async */
	{218, 218}, /* cuMemsetD16Async */
	{220, 220}, /* cuMemsetD32Async */
	{222, 222}, /* cuMemsetD2D8Async */
	{224, 224}, /* cuMemsetD2D16Async */
	{226, 226}, /* cuMemsetD2D32Async */
	{248, 254}, /* cuMemcpy_v2, cuMemset*_v2 */
	{276, 293}, /* cuMemcpy*_v2, cuMemcpy*Async_v2 */
	{305, 306}, /* cuMemcpy, cuMemcpyAsync */
	{307, 307}, /* cuLaunchKernel */
	{318, 321}, /* cuMemcpyPeer, cuMemcpyPeerAsync, cuMemcpy3DPeer, cuMemcpy3DPeerAsync */
	{397, 416}, /* cuMemcpy*_ptds, cuMemset*_ptds */
	{418, 433}, /* cuMemcpy*Async_ptsz, cuMemset*Async_ptsz */
	{442, 442}, /* cuLaunchKernel_ptsz */
	{477, 478}, /* cuLaunchCooperativeKernel, _ptsz */
	{480, 480}, /* cuLaunchCooperativeKernelMultiDevice */
	{514, 515}, /* cuGraphLaunch, _ptsz */
	{652, 653}, /* cuLaunchKernelEx, _ptsz */
	{776, 779}, /* cuMemcpyBatchAsync, cuMemcpy3DBatchAsync, and _ptsz of each */
	{796, 799}, /* their _v2 */
};

static enum ogf_launch_records mode;

static void enable(bool on)
{
	for (size_t range = 0; range < sizeof(calls) / sizeof(calls[0]); range++)
		for (uint32_t call = calls[range].first; call <= calls[range].last; call++)
			ogf_cupti.cuptiActivityEnableDriverApi(call, on);
}

/*
 * Left enabled between windows, launch records end up in the buffers of whoever registers next: Kineto then complains
 * on the program's stderr about one that it never gave (measured with torch 2.11).
 */
static enum ogf_launch_records mode_from_environment(void)
{
	const char *text = getenv("OTEL_GPUFLAME_INJECT_API");

	if (text && strcmp(text, "late") == 0)
		return OGF_LAUNCHES_LATE;
	if (text && strcmp(text, "init") == 0)
		return OGF_LAUNCHES_ALWAYS;
	return OGF_LAUNCHES_IN_WINDOWS;
}

/* In InitializeInjection, before cuInit ends. */
void ogf_launches_init(void)
{
	mode = mode_from_environment();
	if (mode != OGF_LAUNCHES_LATE)
		enable(true);
	if (mode == OGF_LAUNCHES_IN_WINDOWS)
		enable(false);
}

/* In every mode: another client that enabled and disabled all driver calls has undone ours. */
void ogf_launches_open(void)
{
	enable(true);
}

void ogf_launches_close(void)
{
	if (mode != OGF_LAUNCHES_ALWAYS)
		enable(false);
}
