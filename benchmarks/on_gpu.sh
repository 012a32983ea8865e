#!/usr/bin/env bash
# All that only a GPU can say, each part with its own limit of seconds; results go to a folder as they come.
#
#     bash benchmarks/on_gpu.sh FOLDER tests small rows sizes grid first steps  all of it, half an hour and more on 16 cores
#     bash benchmarks/on_gpu.sh FOLDER rows=200                                 one part, for at most 200 s
#
# tests: pytest -m gpu to its end. small: kernels at odd sizes, which CI runs under the interpreter, on the chip.
# rows: what docs/speed.md compares before and after. sizes: a hundred and a thousand parents, whose textbook forms take
# minutes to compile. grid: points that the file in results/bench lacks. first: the first step of every model that the
# file there lacks. steps: whole training steps. Tests want pytest-xdist, torchdata.
set -uo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "$1"); shift
mkdir -p "$out"
cores=$(nproc)
export PYTHONPATH=".${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1
python=${PYTHON:-python3}
for part in "$@"; do
  name=${part%%=*}; limit=${part#*=}; [ "$limit" = "$name" ] && limit=
  case $name in
    tests) # Files with marks of such tests alone: each worker collects all that it is given, and other rooms want more packages.
           timeout -s INT "${limit:-540}" "$python" -m pytest -o addopts= -p no:cacheprovider -v -m "gpu or kernels" \
             -n $((cores - 2)) --dist worksteal --continue-on-collection-errors --durations 20 $(grep -rlE "mark\.(gpu|kernels)" tests --include "*.py") > "$out/tests.log" 2>&1
           tail -n 60 "$out/tests.log" | grep -E "^(FAILED|ERROR)|passed|failed" ;;
    small) timeout -s INT "${limit:-300}" "$python" -m pytest -o addopts= -p no:cacheprovider -v -m "not (gpu or kernels or slow)" \
             -n $((cores - 2)) --dist worksteal --durations 20 tests/form > "$out/small.log" 2>&1
           tail -n 60 "$out/small.log" | grep -E "^(FAILED|ERROR)|passed|failed" ;;
    rows)  "$python" benchmarks/run.py "$out" models=60 folded=20 large=20 sweeps=60 paper=60 conv=30 --jobs "$cores" \
             --prepare-limit "${limit:-120}" 2>&1 | tee "$out/rows.log" | tail -n 40 ;;
    sizes) "$python" benchmarks/run.py "$out" sizes=90 --jobs "$cores" --prepare-limit "${limit:-200}" 2>&1 | tee "$out/sizes.log" | tail -n 30 ;;
    grid)  cp results/bench/grid-cuda.csv "$out/"
           "$python" benchmarks/run.py "$out" grid="${limit:-470}" --jobs "$cores" 2>&1 | tee "$out/grid.log" | tail -n 30 ;;
    first) cp -n results/bench/first-steps-cuda.csv "$out/"
           "$python" benchmarks/first_steps.py "$out/first-steps-cuda.csv" --seconds "${limit:-300}" 2>&1 | tail -n 50 ;;
    steps) timeout -s INT "${limit:-240}" "$python" benchmarks/steps.py "$out/steps-cuda.csv" 2>&1 | tail -n 20 ;;
    *)     echo "$name: expected tests, small, rows, sizes, grid, first or steps" >&2; exit 2 ;;
  esac
done
