#!/usr/bin/env bash
# Methods of a study side by side on one GPU, each in a process of its own, and the report when all are done.
#
#   tools/side_by_side.sh PROCESSES STUDY OUT METHOD… [-- OPTION…]
#   tools/side_by_side.sh 6 controlled results/controlled samplr robust_plr dr -- --seeds 5
#
# One program does not fill a large card, and compiles and is examined on the host meanwhile. What was done is not done
# again, so the same command goes on after a stop. OUT.logs/METHOD.log tells how far each of them is.
set -euo pipefail
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
export python
if [ $# -lt 4 ]; then
  sed -n 's/^# \{0,3\}//; 2,5p' "$0" >&2
  exit 2
fi
processes=$1 study=$2 out=$3
shift 3
methods=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  methods+=("$1")
  shift
done
shift || true

# Without MPS the processes would take turns on the card.
if command -v nvidia-cuda-mps-control > /dev/null; then
  echo start_server -uid "$(id -u)" | nvidia-cuda-mps-control > /dev/null 2>&1 || nvidia-cuda-mps-control -d
fi
XLA_PYTHON_CLIENT_MEM_FRACTION=$(awk "BEGIN { printf \"%.3f\", 0.9 / $processes }")
export XLA_PYTHON_CLIENT_MEM_FRACTION
mkdir -p "$out.logs"

one() { # method study out option…
  local method=$1 study=$2 out=$3
  shift 3
  if "$python" -m samplr reproduce "$study" --out "$out" --methods "$method" "$@" > "$out.logs/$method.log" 2>&1; then
    echo "$method: done"
  else
    echo "$method: failed, see $out.logs/$method.log"
    return 1
  fi
}
export -f one
printf '%s\n' "${methods[@]}" | xargs -P "$processes" -I{} bash -c 'one "$@"' _ {} "$study" "$out" "$@" || failed=1
"$python" -m samplr reproduce "$study" --out "$out" --only report
exit "${failed:-0}"
