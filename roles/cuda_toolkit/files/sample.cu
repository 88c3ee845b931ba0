// Compiled after an installation: proves that compiler, headers, host compiler and runtime fit together.
// Without a GPU the runtime's calls answer with an error, which is fine here: the host part must run.
#include <cstdio>
#include <cuda_runtime.h>

__global__ void add_one(int *values, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) values[i] += 1;
}

int main() {
    int sum = 0, devices = 0;
    for (int i = 1; i <= 100; ++i) sum += i;
    cudaError_t answer = cudaGetDeviceCount(&devices);
    std::printf("host part ran: sum %d, CUDA %d, gcc %d\n", sum, CUDART_VERSION, __GNUC__);
    std::printf("devices: %d (%s)\n", devices, cudaGetErrorString(answer));
    if (answer == cudaSuccess && devices > 0) {
        int *values = nullptr, host[100] = {0};
        answer = cudaMalloc(&values, sizeof host);
        if (answer == cudaSuccess) answer = cudaMemcpy(values, host, sizeof host, cudaMemcpyHostToDevice);
        if (answer == cudaSuccess) add_one<<<1, 128>>>(values, 100);
        if (answer == cudaSuccess) answer = cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost);
        std::printf("kernel: %s\n", answer == cudaSuccess && host[99] == 1 ? "ran" : cudaGetErrorString(answer));
    }
    return 0;
}
