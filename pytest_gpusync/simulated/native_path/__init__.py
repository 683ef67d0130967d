"""Native code that runs most kernels without entering Python."""
