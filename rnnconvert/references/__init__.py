"""The equations of each cell in float64 numpy; they share no code with the conversion."""
