"""The chain of decided records: agreeing on one, proving it, and which of two chains counts."""
