"""What every operation means, by hand, apart from the language: values, derivatives, and their edges."""
