"""Parts of `benchmarks/learning.py`: what is trained, how members train, and how runs are kept."""
