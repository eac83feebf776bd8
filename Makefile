.PHONY: check format
check:  ## everything that .ci/run checks, in the environment at hand
	ruff check . && ruff format --check . && mypy && python -m pytest
format:
	ruff check --fix . && ruff format .
