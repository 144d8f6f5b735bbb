"""The update: which coefficients a member sends, their bytes, and the rules of the shared step."""
