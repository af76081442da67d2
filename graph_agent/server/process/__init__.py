"""Server processes: settings, start, workers, metrics and readiness."""
