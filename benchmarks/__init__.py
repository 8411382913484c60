"""The app beside the least that its database has to do for the same jobs. Run it with `python -m benchmarks`."""
