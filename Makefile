.PHONY: check quick format
check:  ## everything that .ci/run checks, in the environment at hand
	ruff check . && ruff format --check . && mypy && python -m pytest
quick:  ## the same without the slow tests, in two processes
	ruff check . && ruff format --check . && mypy && python -m pytest -m "not slow" -n 2 --dist loadfile
format:
	ruff check --fix . && ruff format .
