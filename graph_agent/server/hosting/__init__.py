"""Holds the served agent of one process: its source, its database, and the event feeds of its sessions."""
