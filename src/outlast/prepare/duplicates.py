"""The search for duplicates, before the shards are built: every task scans its portions, task 0 decides."""

from collections.abc import Sequence

from outlast.build.drive import Run
from outlast.build.failures import FailureWatch
from outlast.build.processes import list_numbers
from outlast.build.tasks import Task, drive_share, wait_for
from outlast.cleaning.drops import MERGED_NAME, read_merged
from outlast.cleaning.merge import delete_scans, find_duplicates
from outlast.cleaning.scan import ScanJob, scanned_portions
from outlast.corpus.extent import TextPortion
from outlast.errors import CorpusError
from outlast.logs import log
from outlast.storage import Store


def ensure_duplicates_found(
    job: ScanJob,
    store: Store,
    portions: Sequence[TextPortion],
    run: Run,
    task: Task | None,
    wait_seconds: float,
) -> None:
    """Scan this share of the corpus; task 0 then decides for all of it which documents are dropped."""
    if not store.exists(MERGED_NAME):
        drive_share("scan", job, portions, scanned_portions(store), task, run)
        if task is not None and task[0] > 0:
            return  # what task 0 decides is there once its tokenizer is
        missing = set(range(len(portions)))

        def is_scanned() -> bool:
            missing.difference_update(scanned_portions(store))
            return not missing

        if not is_scanned():
            log.info("waiting for the other tasks, which scan %s", list_numbers(sorted(missing)))
        if not wait_for(is_scanned, wait_seconds, FailureWatch(store, None).check):
            raise CorpusError(
                f"{len(missing)} of {len(portions)} portions are not scanned for duplicates after "
                f"{wait_seconds:.0f} seconds: {list_numbers(sorted(missing))}.",
                where=store.url,
                remedy="start the other tasks, whose portions they are, then this one again",
            )
        find_duplicates(store, job.cleaning, len(portions))
    delete_scans(store)
    merged = read_merged(store)
    found = [f"{count} {reason.replace('_', ' ')}s" for reason, count in merged.dropped.items()]
    found += [f"{merged.dropped_lines} duplicate lines"] if merged.dropped_lines else []
    log.info("cleaning: of %d documents %s", merged.num_documents, ", ".join(found) or "no two are alike")
