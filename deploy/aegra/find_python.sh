#!/bin/sh
# Prints a Python that Aegra runs on: CLUSTER_PYTHON if it is set, else the first that is found.
for python in ${CLUSTER_PYTHON:-python3.12 python3.13 python3.14 python3 "$HOME"/.pyenv/versions/3.1[2-9]*/bin/python}; do
	if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then
		echo "$python"
		exit 0
	fi
done
echo "Aegra needs Python 3.12 or newer, and found none (tried ${CLUSTER_PYTHON:-python3.12, 3.13, 3.14, python3 and pyenv})." >&2
echo "Name one with: make demo-cluster CLUSTER_PYTHON=/path/to/python3.12" >&2
exit 1
