.PHONY: check quick format
check:  ## all checks of .ci/run, in the current environment
	ruff check . && ruff format --check . && mypy && python -m pytest
quick:  ## the same without the slow tests, with tests in two processes
	ruff check . && ruff format --check . && mypy && python -m pytest -m "not slow" -n 2 --dist loadfile
format:  ## fix lint errors and format the code
	ruff check --fix . && ruff format .
