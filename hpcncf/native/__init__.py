"""The compiled library of engine native: its C++ source, and the build that this CPU can run."""
