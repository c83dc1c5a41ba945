"""Steps on a GPU: device-side batch, CUDA graphs, overlapped launches."""
