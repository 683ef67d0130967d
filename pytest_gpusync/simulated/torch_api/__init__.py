"""The Python API of torch above the kernels: ``torch.cuda``, tensors, distributed, profiler, compiler."""
