"""One module for each framework: `opened(turns, folder)` yields a function that answers one input of a session.

With a folder, the framework stores its sessions there. A module without `STORES` keeps none.
"""
