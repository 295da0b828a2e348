// SPDX-License-Identifier: Apache-2.0
/*
 * An operator of PyTorch that launches a kernel on the fake driver, forwards and backwards: from behind the dispatcher,
 * and from a node of the autograd engine. Built by torch_walks_target.py.
 */
#include <torch/extension.h>
#include <torch/library.h>

namespace
{

using Launch = int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		       void **);

Launch launch;
void *function;
int64_t launched;

at::Tensor on_cpu(const at::Tensor &input)
{
	launch(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
	launched++;
	return input * 1;
}

at::Tensor call(const at::Tensor &input)
{
	static auto handle = c10::Dispatcher::singleton()
				     .findSchemaOrThrow("ogf::kernel", "")
				     .typed<at::Tensor(const at::Tensor &)>();

	return handle.call(input);
}

struct Node : torch::autograd::Function<Node> {
	static at::Tensor forward(torch::autograd::AutogradContext *, const at::Tensor &input)
	{
		at::AutoDispatchBelowADInplaceOrView guard;

		return call(input);
	}

	static torch::autograd::variable_list backward(torch::autograd::AutogradContext *,
						       torch::autograd::variable_list gradients)
	{
		return {call(gradients[0])};
	}
};

at::Tensor with_autograd(const at::Tensor &input)
{
	return Node::apply(input);
}

void set_up(int64_t kernel, int64_t address)
{
	function = reinterpret_cast<void *>(kernel);
	launch = reinterpret_cast<Launch>(address);
}

} // namespace

TORCH_LIBRARY(ogf, library)
{
	library.def("kernel(Tensor input) -> Tensor");
}

TORCH_LIBRARY_IMPL(ogf, CPU, library)
{
	library.impl("kernel", on_cpu);
}

TORCH_LIBRARY_IMPL(ogf, Autograd, library)
{
	library.impl("kernel", with_autograd);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module)
{
	module.def("set_up", &set_up);
	module.def("launched", []() { return launched; });
}
