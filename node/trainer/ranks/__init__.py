"""Several devices that train as one member."""
