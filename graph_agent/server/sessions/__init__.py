"""Sessions over HTTP: their history, their control, and their events as they are stored."""
