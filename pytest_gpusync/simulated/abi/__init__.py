"""The parts of torch's private C++ interface that the simulated device replaces. Each is checked before use."""
