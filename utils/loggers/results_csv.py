"""results.csv in the run folder."""

from utils.files.writers import write_csv
from utils.log import EpochEnded, Event, RunStarted


class CsvSink:
    """Writes results.csv in the run folder, one row per epoch.

    Each update rewrites the whole file.
    """

    def handle(self, event: Event) -> None:
        if isinstance(event, (RunStarted, EpochEnded)):
            write_csv(event.folder / "results.csv", list(event.rows))
