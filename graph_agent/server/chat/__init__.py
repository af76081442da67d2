"""One chat request from its body to its outcome, in the terms that both chat APIs share."""
