# Sourced by the other scripts: where the project is, which Python, how to say things.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV="$ROOT/.venv"
export PATH="$VENV/bin:$PATH"
cd "$ROOT"

say() { printf '%s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$1" >&2; [ $# -lt 2 ] || printf 'remedy: %s\n' "$2" >&2; exit "${3:-70}"; }

system_python() {
  # The distribution's own Python: its -dev and -venv packages match it.
  if [ -n "${NODEAGENT_PYTHON:-}" ]; then printf '%s\n' "$NODEAGENT_PYTHON"
  elif [ -x /usr/bin/python3 ]; then printf '/usr/bin/python3\n'
  else command -v python3 || die "no python3 found, expected Python 3.11 or newer" "apt-get install python3"; fi
}
