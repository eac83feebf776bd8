.PHONY: check quick format
check:  ## all checks of .ci/run, in the current environment
	ruff check . && ruff format --check . && mypy && python -m pytest -n auto --dist loadfile
quick:  ## the same without the slow tests
	ruff check . && ruff format --check . && mypy && python -m pytest -m "not slow" -n auto --dist loadfile
format:  ## fix lint errors and format the code
	ruff check --fix . && ruff format .
