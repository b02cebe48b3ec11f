#!/usr/bin/env bash
# Makes .venv with everything the other make targets need; a second run that finds nothing changed
# ends at once. TORCH names a torch to take (e.g. 'torch==2.13.0+cpu', found through UV_FIND_LINKS);
# without it the build that fits this machine is taken.
set -euo pipefail
cd "$(dirname "$0")/.."

torch=${TORCH:-}
stamp=.venv/.setup
inputs=$(cat pyproject.toml constraints.txt scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [[ -f $stamp ]]; then
    read -r old_inputs old_torch <"$stamp" || true
    [[ $old_inputs == "$inputs" && (-z $torch || $torch == "${old_torch:-}") ]] && exit 0
fi

say() { printf 'setup: %s\n' "$*"; }
can_apt() { [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; }
apt_install() {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Mooncake's shared libraries. Without them the shm transport still works.
missing=()
known=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p)
for pair in libibverbs.so.1:libibverbs1 libcurl.so.4:libcurl4 librdmacm.so.1:librdmacm1 \
    libnuma.so.1:libnuma1; do
    grep -qF "${pair%%:*} " <<<"$known" || missing+=("${pair##*:}")
done
if ((${#missing[@]})); then
    if can_apt; then
        say "installing ${missing[*]} (Mooncake needs them)"
        apt_install "${missing[@]}"
    else
        say "the mooncake transport needs ${missing[*]}: apt-get install them as root; shm works without"
    fi
fi

# uv: the one on PATH, else one of our own from PyPI.
if command -v uv >/dev/null; then
    uv=uv
else
    home=${PDSERVE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pdserve}/uv
    uv=$home/bin/uv
    if [[ ! -x $uv ]]; then
        say "installing uv into $home"
        if ! python3 -m venv "$home" >/dev/null 2>&1; then
            can_apt || { say "python3 cannot make environments: install python3-venv"; exit 1; }
            apt_install python3-venv
            python3 -m venv "$home"
        fi
        "$home/bin/pip" install -q --disable-pip-version-check uv
    fi
fi

# Python 3.11 is what the tests run with; a newer one is taken where there is no 3.11.
[[ -x .venv/bin/python ]] ||
    "$uv" venv -q --no-python-downloads --python 3.11 .venv 2>/dev/null ||
    "$uv" venv -q --python '>=3.11' .venv
export VIRTUAL_ENV=$PWD/.venv
# Compiled now, since every worker is a process that imports it all.
install() { "$uv" pip install -q --compile-bytecode --constraints constraints.txt "$@"; }

if [[ -n $torch ]]; then
    say "installing $torch"
    install "$torch"
elif ! .venv/bin/python -c 'import torch' 2>/dev/null; then
    say "installing torch for this machine"
    UV_HTTP_TIMEOUT=15 UV_HTTP_RETRIES=0 install --torch-backend=auto torch 2>/dev/null || {
        say "PyTorch's own index cannot be reached: taking the build of the package index"
        install torch
    }
fi

mooncake=mooncake-cpu
nvidia-smi -L >/dev/null 2>&1 && mooncake=mooncake
say "installing pdserve with worker, operator, $mooncake, bench and the development tools"
install --group dev --editable ".[worker,operator,$mooncake,bench]"
printf '%s %s\n' "$inputs" "$torch" >"$stamp"
say "done: .venv/bin/pdserve --help"
