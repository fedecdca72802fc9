#!/bin/sh
# Makes the environment of Doppler's published code in DIR (2 GB with PIP_ARGS for torch without CUDA, as for make),
# and trains each of its agents on each graph for SECONDS of processor time. Run it again to resume:
# sh agent/lab/doppler.sh DIR SECONDS [GRAPH ...]
set -eu
train=$(realpath "$(dirname "$0")")/doppler_train.py
dir=$1 seconds=$2
shift 2
mkdir -p "$dir"
cd "$dir"
if [ ! -d code ]; then
    git clone https://github.com/xinyuyao/Doppler code
    git -C code checkout 04c66de0aa615bd92ce4a9bb670b19c4fda557d9
fi
if [ ! -e env/ready ]; then
    python3.11 -m venv env
    # dgl 2 runs with few releases of torch; dgl 1 needs an old setuptools, torch none.
    # shellcheck disable=SC2086
    env/bin/pip install ${PIP_ARGS:-} torch==2.13.0 "numpy<2" dgl==1.1.3 dgllife==0.3.2 rdkit simpy pexpect python-dotenv \
        gymnasium matplotlib
    env/bin/pip install "setuptools<71"
    touch env/ready
fi
DGLBACKEND=pytorch exec env/bin/python -W ignore "$train" code agents "$seconds" "$@"
