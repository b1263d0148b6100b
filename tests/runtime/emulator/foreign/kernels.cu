// CUDA kernels whose compiled PTX is kernels.ptx. To make it again (no GPU needed; made with CUDA 13.0):
//   nvcc -ptx -arch=sm_80 -O3 kernels.cu -o kernels.ptx
#include <cuda_fp16.h>

constexpr int TILE = 16;

// c[m, n] = a[m, k] b[k, n]; blocks of TILE x TILE threads.
extern "C" __global__ void matmul(const float *a, const float *b, float *c, int m, int n, int k) {
    __shared__ float left[TILE][TILE], right[TILE][TILE];
    const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float total = 0.0f;
    for (int start = 0; start < k; start += TILE) {
        const int i = start + threadIdx.x, j = start + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = row < m && i < k ? a[row * k + i] : 0.0f;
        right[threadIdx.y][threadIdx.x] = j < k && column < n ? b[j * n + column] : 0.0f;
        __syncthreads();
        for (int step = 0; step < TILE; ++step) total += left[threadIdx.y][step] * right[step][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) c[row * n + column] = total;
}

template <typename Operation> __device__ float reduce(float value, Operation operation, float *scratch) {
    for (int offset = 16; offset; offset /= 2) value = operation(value, __shfl_xor_sync(0xffffffffu, value, offset));
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = scratch[0];
    for (int warp = 1; warp < blockDim.x / 32; ++warp) value = operation(value, scratch[warp]);
    __syncthreads();
    return value;
}

// Softmax of rows of halves, one block a row.
extern "C" __global__ void softmax(const __half *x, __half *y, int n) {
    __shared__ float scratch[32];
    x += blockIdx.x * n;
    y += blockIdx.x * n;
    float high = -INFINITY;
    for (int i = threadIdx.x; i < n; i += blockDim.x) high = fmaxf(high, __half2float(x[i]));
    high = reduce(high, [](float a, float b) { return fmaxf(a, b); }, scratch);
    float total = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) total += expf(__half2float(x[i]) - high);
    total = reduce(total, [](float a, float b) { return a + b; }, scratch);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = __float2half(expf(__half2float(x[i]) - high) / total);
}

// Counts of 64 bins; dynamic shared memory of 64 words.
extern "C" __global__ void histogram(const unsigned *x, unsigned *counts, int n) {
    extern __shared__ unsigned bins[];
    for (int i = threadIdx.x; i < 64; i += blockDim.x) bins[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&bins[x[i] % 64], 1u);
    __syncthreads();
    for (int i = threadIdx.x; i < 64; i += blockDim.x) atomicAdd(&counts[i], bins[i]);
}

__device__ unsigned finished = 0;

// Sum of an array: a part for every block, added up by the block that comes last (as in NVIDIA's threadFenceReduction).
extern "C" __global__ void total(const double *x, double *parts, double *result, int n) {
    __shared__ double scratch[256];
    __shared__ bool last;
    double sum = 0.0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    scratch[threadIdx.x] = sum;
    for (int half = blockDim.x / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    }
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = scratch[0];
        __threadfence();
        last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        double all = 0.0;
        for (int i = 0; i < gridDim.x; ++i) all += parts[i];
        *result = all;
    }
}
