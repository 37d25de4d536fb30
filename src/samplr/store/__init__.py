"""Run folders: what a batch of training runs leaves on disk, safe against being killed at any moment.

    config.json                   what was run, and with which versions
    metrics.jsonl                 one row of metrics a line
    tensorboard/run_<i>/          the same numbers for TensorBoard, one sub-folder per run of the batch
    checkpoints/<update>/         the whole state of the batch; the newest two are kept
    summary.json                  written when the batch is done
    .lock                         held by the process that writes here

Three rules make a kill harmless. A file or checkpoint takes its final name only when it is whole and on the
disk. A checkpoint carries the SHA-256 of each of its files, and is used only if they all agree. What was
logged after the checkpoint a run resumes from is dropped, because the resumed run logs it again.
"""

from samplr.store.checkpoints import Arrays as Arrays
from samplr.store.checkpoints import Checkpoint as Checkpoint
from samplr.store.folder import RunFolder as RunFolder
from samplr.store.folder import held as held
from samplr.store.folder import read_checkpoint as read_checkpoint
from samplr.store.folder import read_config as read_config
from samplr.store.folder import read_metrics as read_metrics
from samplr.store.folder import read_summary as read_summary
from samplr.store.metrics import Row as Row
