#!/bin/sh
# Runs store_torch.py with a Python that has torch: TUTTI_TEST_PYTHON, else python3. Without one the test is skipped.
python=${TUTTI_TEST_PYTHON:-python3}
if ! command -v "$python" >/dev/null 2>&1; then
    echo "skipped: no Python interpreter '$python'; set TUTTI_TEST_PYTHON to one that has torch"
    exit 77
fi
exec timeout 110 "$python" "$(dirname "$0")/store_torch.py" "$1"
