# SPDX-License-Identifier: Apache-2.0
# The Python wheel, installed into a clean environment, runs a short script there: no NumPy, no PyTorch.
. tests/cli/lib.sh

case $checkers in
*-fsanitize*) skip "a library with a sanitizer does not load into Python" ;;
esac
python=$(command -v "${FERRY_PYTHON-python3}") # pip wants a path
if ! "$python" -m pip --python "$python" --version >/dev/null 2>&1 ||
    ! "$python" -m venv --without-pip "$work/venv" >"$work/out" 2>&1; then
    skip "no python3 with venv and pip 22.3 or newer"
fi
PYTHON=$python expect 0 tools/wheel.sh "$FERRY_BUILD" "$work"
wheel=$(cat "$work/out")
case $wheel in
"$work"/ferry_moe-*-py3-none-*linux*_"$(uname -m)".whl) ;;
*) problem "the wheel's name: $wheel" ;;
esac
PYTHON=$python expect 0 tools/wheel.sh "$FERRY_BUILD" "$work/venv"
cmp "$wheel" "$(cat "$work/out")" || problem "the same contents give another wheel"
unset FERRY_LIBRARY PYTHONPATH
expect 0 "$python" -m pip --python "$work/venv/bin/python" install -q --no-index --disable-pip-version-check "$wheel"

cat >"$work/script.py" <<'END'
import array, ferry_moe
view = lambda code, shape, values: memoryview(array.array(code, values)).cast("B").cast(code, shape)
group = ferry_moe.Group.single("cpu")
layer = group.layer(hidden=4, intermediate=8, experts=2, top_k=1, max_tokens=3)
x, out = view("H", [3, 4], [0x3F80] * 12), view("H", [3, 4], [0] * 12)  # BF16 bits
ids, weights = view("i", [3, 1], [0, 1, -1]), view("f", [3, 1], [1.0, 2.0, 3.0])
gate_up, down = view("H", [2, 16, 4], [0x3F00] * 128), view("H", [2, 4, 8], [0x3F00] * 64)
ferry_moe.functional.forward(layer, x, ids, weights, gate_up, down, out=out)
print(out.tolist(), ferry_moe.load_library()._name)
END
expect 0 "$work/venv/bin/python" "$work/script.py"
says out "[[16737, 16737, 16737, 16737], [16865, 16865, 16865, 16865], [0, 0, 0, 0]] $work/venv/"
silent err
finish
