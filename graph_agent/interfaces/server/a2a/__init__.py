"""Serves agents over A2A, mounted with the chat APIs or standalone.

a2a-sdk, from the extra `server`, implements the protocol; only this package and `delegates` import it.
"""
