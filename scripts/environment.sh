# Sourced by the scripts beside it: one virtual environment for this checkout.
#
# In: OUTLAST_VENV (default: .venv in the checkout), OUTLAST_PYTHON (default: the first of python3, python3.13, 3.12,
# 3.11 that is new enough). Out: $checkout, $venv, `install_extras` and `install_libtpu`. The package is installed again
# only when pyproject.toml, a lock, the checkout or the Python version changed, or another extra is asked for.

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=${OUTLAST_VENV:-$checkout/.venv}
[[ $venv == /* ]] || venv=$PWD/$venv

fail() {
  printf '%s\n' "$@" >&2
  exit 1
}

# A folder of absolute path, made if it is not there.
absolute_folder() {
  mkdir -p -- "$1" && (cd -- "$1" && pwd -P)
}

install_extras() {
  make_environment
  local stamp=$venv/.outlast-installed identity installed="" extra missing=()
  identity="$(cat "$checkout/pyproject.toml" "$checkout"/requirements/*.lock | cksum) $checkout"
  identity+=" $("$venv/bin/python" --version)"
  if [[ -f $stamp && $(head -n 1 "$stamp") == "$identity" ]]; then
    installed=$(tail -n 1 "$stamp")
  fi
  for extra in "$@"; do
    [[ ",$installed," == *",$extra,"* ]] || missing+=("$extra")
  done
  ((${#missing[@]})) || return 0
  installed=$(IFS=,; echo "${installed:+$installed,}${missing[*]}")
  echo "Installing outlast[$installed] into $venv; the first time takes some minutes."
  install_locked "$installed" || pip_install --editable "$checkout[$installed]"
  printf '%s\n' "$identity" "$installed" >"$stamp"
}

# Install the versions of requirements/*.lock, digests checked, on the system that they are of. Returns whether these
# are all that the extras need.
install_locked() {
  local lock=quickstart
  "$venv/bin/python" -c 'import platform, sys
system = (sys.version_info[:2], sys.platform, platform.machine(), platform.libc_ver()[0])
sys.exit(system != ((3, 11), "linux", "x86_64", "glibc"))' || return 1
  [[ ",$1," != *,test,* ]] || lock=test
  pip_install --require-hashes --requirement "$checkout/requirements/$lock.lock"
  pip_install --no-deps --no-build-isolation --editable "$checkout"
  [[ $1 == test || $1 == train || $1 == train,test || $1 == test,train ]]
}

pip_install() {
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" ||
    fail "The installation failed; what pip says stands above." "Fix it and run the same line again."
}

# Install libtpu (the extra `aot`) into $venv/aot, apart from all else: beside jax it would make every `import jax`
# look for a TPU. The tests that compile for one put the folder on the path of a process of their own.
install_libtpu() {
  local folder=$venv/aot requirement
  requirement=$("$venv/bin/python" -c '
import sys, tomllib
print(*tomllib.load(sys.stdin.buffer)["project"]["optional-dependencies"]["aot"])' <"$checkout/pyproject.toml")
  if [[ -f $folder/.outlast-installed && $(<"$folder/.outlast-installed") == "$requirement" ]]; then
    return 0
  fi
  echo "Installing ${requirement%%;*} into $folder; it is 200 MB to load and 700 MB on the disk."
  rm -rf -- "$folder"
  mkdir -p -- "$folder"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" "$requirement" || {
    echo "libtpu could not be installed (above): the tests that compile for TPU are skipped."
    return 0
  }
  printf '%s\n' "$requirement" >"$folder/.outlast-installed"
}

make_environment() {
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return 0
  local python
  if ! python=$(find_python); then
    install_debian_packages
    python=$(find_python) || fail \
      "There is no Python 3.11 or newer with the venv module on this machine." \
      "On Debian or Ubuntu: apt-get install python3 python3-venv. Elsewhere install Python 3.11 or newer," \
      "or name one: OUTLAST_PYTHON=/path/to/python3 $0"
  fi
  echo "Making a virtual environment in $venv with $python."
  "$python" -m venv "$venv" || fail "The virtual environment could not be made." \
    "Remove $venv, or name another folder: OUTLAST_VENV=/path/to/folder $0"
}

# Print the first Python that is new enough and can make virtual environments (Debian ships ensurepip apart).
find_python() {
  local candidate
  for candidate in ${OUTLAST_PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      echo "$candidate"
      return 0
    fi
  done
  return 1
}

install_debian_packages() {
  [[ -z ${OUTLAST_PYTHON:-} && $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 0
  echo "Installing the Debian packages python3 and python3-venv."
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    python3 python3-venv >/dev/null || fail "apt-get could not install python3 and python3-venv."
}

# nginx, which some tests run and skip without: installed where that is allowed.
install_programs_of_tests() {
  PATH=$PATH:/usr/sbin command -v nginx >/dev/null && return 0
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 0
  echo "Installing the Debian package nginx-light."
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    nginx-light >/dev/null || echo "It could not be installed: the tests that run nginx are skipped."
}
