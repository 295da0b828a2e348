// SPDX-License-Identifier: Apache-2.0
/* Enters and leaves a Context as extension modules do: by calling the functions that it imports. */
int PyContext_Enter(void *context);
int PyContext_Exit(void *context);

int enter(void *context)
{
	return PyContext_Enter(context);
}

int leave(void *context)
{
	return PyContext_Exit(context);
}
