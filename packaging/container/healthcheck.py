#!/usr/bin/env python3
"""Exit with 0 if the daemon of this container says at /readyz that it is ready, and print its answer."""

import os
import sys
from urllib.error import HTTPError
from urllib.request import urlopen

url = f"http://127.0.0.1:{os.environ['SHARDWRIGHT_METRICS_PORT']}/readyz"
try:
    with urlopen(url, timeout=4) as answer:
        print(answer.read().decode())
except HTTPError as error:
    sys.exit(error.read().decode())
except OSError as error:
    sys.exit(f"{url}: {error}")
