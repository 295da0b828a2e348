// SPDX-License-Identifier: Apache-2.0
// Stands in for libtorch_cpu.so: an autograd engine with the threads, queues, nested loops and exported names of
// PyTorch's, whose nodes launch one kernel each. A pass is a chain of nodes; each may be on another device.
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "abi.h"

#define EXPORT    __attribute__((visibility("default")))
#define OWN_FRAME __attribute__((noinline))

extern "C" {
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
			CUstream stream, void **parameters, void **extra);

// tests/fakes/torch_engine.py has the same layout.
struct fake_node {
	int32_t device; // CPU_DEVICE: the thread that called backward
	int32_t throws;
	CUfunction function;
	void (*hook)(uint64_t tag); // called after the launch, or NULL
	uint64_t tag;
};
}

namespace torch
{
namespace autograd
{

enum { NO_DEVICE = -2, CPU_DEVICE = -1 };

struct ReadyQueue;
struct GraphTask;

struct Node : fake_node {
};

struct InputBuffer {
	std::vector<double> values = std::vector<double>(4);
};

struct NodeTask {
	std::weak_ptr<GraphTask> base;
	Node *node;
};

struct ReadyQueue {
	void push(NodeTask task);
	bool pop(const std::shared_ptr<GraphTask> &graph_task, NodeTask *ret_task);
	void wake();

	std::mutex mutex;
	std::condition_variable changed;
	std::deque<NodeTask> tasks;
};

struct GraphTask {
	std::vector<Node> nodes;
	CUfunction after_last; // launched by whoever finishes the pass, outside of every node
	std::shared_ptr<ReadyQueue> cpu_ready_queue;
	int owner = NO_DEVICE;
	std::atomic<int> outstanding{0};
	std::atomic<bool> has_error{false};
	std::atomic<bool> completed{false};
};

void ReadyQueue::push(NodeTask task)
{
	std::lock_guard<std::mutex> lock(mutex);

	tasks.push_back(std::move(task));
	changed.notify_one();
}

// Waits for a task; false when the pass has ended.
bool ReadyQueue::pop(const std::shared_ptr<GraphTask> &graph_task, NodeTask *ret_task)
{
	const auto has_ended = [&] { return graph_task && graph_task->completed; };
	std::unique_lock<std::mutex> lock(mutex);

	changed.wait(lock, [&] { return has_ended() || !tasks.empty(); });
	if (has_ended()) {
		// The wake-up may have been for a task that another thread must do now.
		changed.notify_one();
		return false;
	}
	*ret_task = std::move(tasks.front());
	tasks.pop_front();
	return true;
}

// A pass has ended: its thread need not wait for tasks any more.
void ReadyQueue::wake()
{
	std::lock_guard<std::mutex> lock(mutex);

	changed.notify_all();
}

// PyTorch returns an intrusive_ptr: like this, an object with a destructor.
using Future = std::shared_ptr<GraphTask>;

static thread_local int worker_device = NO_DEVICE;
static thread_local int current_depth;
static thread_local std::shared_ptr<ReadyQueue> local_ready_queue;

static void launch(CUfunction function)
{
	if (cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) != CUDA_SUCCESS)
		abort();
}

struct EXPORT Engine {
	Future execute(const std::shared_ptr<GraphTask> &graph_task) OWN_FRAME;
	Future execute_with_graph_task(const std::shared_ptr<GraphTask> &graph_task, std::shared_ptr<Node> graph_root,
				       InputBuffer &&input_buffer) OWN_FRAME;
	void evaluate_function(std::shared_ptr<GraphTask> &graph_task, Node *node, InputBuffer &inputs,
			       const std::shared_ptr<ReadyQueue> &cpu_ready_queue) OWN_FRAME;
	void thread_main(const std::shared_ptr<GraphTask> &graph_task) OWN_FRAME;
	void thread_init(int device) OWN_FRAME;
	void pool_thread_main() OWN_FRAME;
	void give_to_pool(const std::shared_ptr<GraphTask> &graph_task);

	std::shared_ptr<ReadyQueue> queue_of(int device, const std::shared_ptr<ReadyQueue> &cpu_ready_queue)
	{
		return device == CPU_DEVICE ? cpu_ready_queue : device_queues.at(device);
	}

	std::vector<std::shared_ptr<ReadyQueue>> device_queues;
	CUcontext context = nullptr;
	int max_depth = 0; // nested deeper than this a pass gets a thread of the pool
	std::mutex pool_mutex;
	std::condition_variable pool_changed;
	std::deque<std::shared_ptr<GraphTask>> pool_passes;
	size_t idle_pool_threads = 0;
	void (*new_thread)(uint64_t) = nullptr;
};

static OWN_FRAME void apply(Node *node)
{
	launch(node->function);
	if (node->hook)
		node->hook(node->tag);
	if (node->throws)
		throw std::runtime_error("a node fails");
}

void Engine::evaluate_function(std::shared_ptr<GraphTask> &graph_task, Node *node, InputBuffer &inputs,
			       const std::shared_ptr<ReadyQueue> &cpu_ready_queue)
{
	inputs.values.at(0) += 1;
	apply(node);
	Node *next = node + 1;

	if (next == graph_task->nodes.data() + graph_task->nodes.size())
		return;
	graph_task->outstanding++;
	queue_of(next->device, cpu_ready_queue)->push({graph_task, next});
}

static OWN_FRAME void finish(Engine *engine, const std::shared_ptr<GraphTask> &graph_task)
{
	if (graph_task->after_last && !graph_task->has_error)
		launch(graph_task->after_last);
	graph_task->completed = true;
	engine->queue_of(graph_task->owner, graph_task->cpu_ready_queue)->wake();
}

// Runs whatever is in the queue of this thread, of any pass, until the pass that it was entered for has ended.
void Engine::thread_main(const std::shared_ptr<GraphTask> &graph_task)
{
	NodeTask task;

	while (local_ready_queue->pop(graph_task, &task)) {
		std::shared_ptr<GraphTask> local_graph_task = task.base.lock();

		if (!local_graph_task)
			continue;
		if (!local_graph_task->has_error) {
			InputBuffer inputs;

			try {
				evaluate_function(local_graph_task, task.node, inputs,
						  local_graph_task->cpu_ready_queue);
			} catch (const std::exception &) {
				local_graph_task->has_error = true;
			}
		}
		if (--local_graph_task->outstanding == 0)
			finish(this, local_graph_task);
	}
}

void Engine::thread_init(int device)
{
	pthread_setname_np(pthread_self(), ("pt_autograd_" + std::to_string(device)).c_str());
	cuCtxSetCurrent(context);
	new_thread(0);
	worker_device = device;
}

// Runs one pass after the other, each as the thread would that has begun it and now waits.
void Engine::pool_thread_main()
{
	thread_init(NO_DEVICE);
	for (;;) {
		std::shared_ptr<GraphTask> graph_task;
		{
			std::unique_lock<std::mutex> lock(pool_mutex);

			idle_pool_threads++;
			pool_changed.wait(lock, [this] { return !pool_passes.empty(); });
			idle_pool_threads--;
			graph_task = pool_passes.front();
			pool_passes.pop_front();
		}
		worker_device = graph_task->owner;
		local_ready_queue = queue_of(worker_device, graph_task->cpu_ready_queue);
		thread_main(graph_task);
	}
}

void Engine::give_to_pool(const std::shared_ptr<GraphTask> &graph_task)
{
	std::lock_guard<std::mutex> lock(pool_mutex);

	pool_passes.push_back(graph_task);
	if (pool_passes.size() > idle_pool_threads)
		std::thread([this] { pool_thread_main(); }).detach();
	pool_changed.notify_one();
}

Future Engine::execute_with_graph_task(const std::shared_ptr<GraphTask> &graph_task, std::shared_ptr<Node> graph_root,
				       InputBuffer &&input_buffer)
{
	const bool is_reentrant = worker_device != NO_DEVICE;

	input_buffer.values.clear();
	if (!is_reentrant)
		worker_device = CPU_DEVICE;
	graph_task->owner = worker_device;
	graph_task->outstanding++;
	queue_of(graph_root->device, graph_task->cpu_ready_queue)->push({graph_task, graph_root.get()});
	if (is_reentrant && current_depth >= max_depth) {
		give_to_pool(graph_task);
		while (!graph_task->completed)
			std::this_thread::yield();
		return graph_task;
	}
	current_depth += is_reentrant;
	thread_main(graph_task);
	current_depth -= is_reentrant;
	if (!is_reentrant)
		worker_device = NO_DEVICE;
	return graph_task;
}

Future Engine::execute(const std::shared_ptr<GraphTask> &graph_task)
{
	if (!local_ready_queue)
		local_ready_queue = std::make_shared<ReadyQueue>();
	graph_task->cpu_ready_queue = local_ready_queue;
	return execute_with_graph_task(graph_task, std::shared_ptr<Node>(graph_task, graph_task->nodes.data()),
				       InputBuffer());
}

static Engine *engine()
{
	static Engine *only = new Engine;

	return only;
}

} // namespace autograd
} // namespace torch

using namespace torch::autograd;

extern "C" EXPORT void fake_torch_start(int devices, int max_depth, CUcontext context, void (*new_thread)(uint64_t))
{
	Engine *started = engine();

	started->context = context;
	started->max_depth = max_depth;
	started->new_thread = new_thread;
	for (int device = 0; device < devices; device++)
		started->device_queues.push_back(std::make_shared<ReadyQueue>());
	for (int device = 0; device < devices; device++)
		std::thread([started, device] {
			started->thread_init(device);
			local_ready_queue = started->device_queues[device];
			started->thread_main(nullptr);
		}).detach();
}

// Runs a pass; returns the address of its task, which was freed by then. *ret_failed: whether a node has thrown.
extern "C" EXPORT uint64_t fake_torch_backward(const fake_node *nodes, uint64_t count, CUfunction after_last,
					       int *ret_failed)
{
	auto graph_task = std::make_shared<GraphTask>();

	for (uint64_t i = 0; i < count; i++)
		graph_task->nodes.push_back(Node{nodes[i]});
	graph_task->after_last = after_last;
	*ret_failed = engine()->execute(graph_task)->has_error;
	return reinterpret_cast<uint64_t>(graph_task.get());
}
