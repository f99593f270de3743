"""Scripts made by chance of what launch scripts are made of are read as bash runs them."""

import random
import shutil
import subprocess

import pytest

from simcluster.importers.shell.script_reader import read_script
from simcluster.importers.shell.script_state import ScriptState, shell_value_to_text

BEFORE = "A=x; N=1; E=; L=a-b-c; P=/u/v/w.json; M=70B; Z=0; T=true; ARR=(m 'n o' p); OPT='--p 1 --q  2'\nB=; C=; D=\n"


def pool(text: str) -> list[str]:
    """What stands between double colons."""
    return [each.strip() for each in text.replace("\n", " ").split(" :: ")]


TEXTS = pool("""$A :: "$A" :: ${A} :: x :: "x" :: y :: "y z" :: $M :: "${M}" :: 70B :: $E :: "$E" :: true :: $T""")
NUMBERS = pool("""$N :: ${N} :: 1 :: 0 :: $Z :: 8 :: "$N" :: $((N+1))""")
PATTERNS = pool("""x* :: *y :: 70? :: "$A"* :: *"$M"* :: [a-z] :: * :: *"x"* :: *$M* :: ${A}* :: [0-9]* :: *"*"*""")
CASES = pool("""*"$M"* :: *"-b"* :: "$A" :: $E :: "7"* :: [0-9] :: *"*"* :: x|y :: *$A|zz""")
VALUES = pool(r"""
    ${A:-d} :: ${E:-d} :: ${E-d} :: ${E:+d} :: ${A:+d} :: ${M^^} :: ${M,,} :: ${ARR[1]} :: ${ARR[@]} :: ${ARR[*]} ::
    ${ARR[-1]} :: ${U:-${A}} :: "a"'b'c :: $A$M :: $((N*8+2)) :: $((7/2)) :: $((7%4)) :: $((N==1)) :: $(($N+${Z})) ::
    $(( N > 0 ? 4 : 2 )) :: $(expr $N + 3) :: $P/$L/$A :: x-$A-$N.$L :: $A$M/y :: `expr 1 + 1`$A`expr 2 + 2` ::
    "$A"/$M/"$L"$N :: $A.$L,$N
""")
WORDS = pool(r"""
    $A :: "$L" :: "${ARR[@]}" :: ${ARR[@]} :: --x=$N :: "--y z" :: $E :: "$E" :: $(expr 1 + 2) :: "$(expr 3 + 4)" ::
    ${ARR[1]} :: --b="${ARR[*]}" :: "${ARR[1]}" :: -e${N}f :: "$A"$M :: $OPT :: "$OPT" :: ${OPT}x :: a\ b :: $P/$L/$A ::
    --c=$A-$M-$L.json :: "$A"/$M/$L :: --c=`expr 5 + 1`/$M :: ${B:+--b $B} :: "${D:-}" :: $@ :: "$@" :: $((N+1)) ::
    --f=$((N*2)) :: x#y :: "it's" :: 'q r'
""")


class Author:
    """Writes scripts by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def one(self, *choices: str) -> str:
        return self.chance.choice(choices)

    def comparison(self, *, double: bool) -> str:
        """Between double brackets with patterns; between single ones quoted."""
        if self.chance.random() < 0.4:
            return f"{self.one(*NUMBERS)} {self.one('-eq', '-ne', '-gt', '-lt', '-ge', '-le')} {self.one(*NUMBERS)}"
        left, right = self.one(*TEXTS), self.one(*TEXTS, *(PATTERNS if double else ()))
        if not double:
            left, right = (f'"{side.strip(chr(34))}"' for side in (left, right))
        return f"{left} {self.one('=', '==', '!=')} {right}"

    def test(self) -> str:
        double = self.chance.random() < 0.7
        text = self.comparison(double=double)
        for _ in range(self.chance.choice([0, 1, 1, 2]) if double else self.chance.choice([0, 1])):
            text += self.one(" && ", " || ") if double else " -a "
            text += self.comparison(double=double)
        text = f"[[ {self.one('', '! ')}{text} ]]" if double else f"[ {text} ]"
        other = self.one("(( N > Z ))", 'test "$A" = x')
        return self.one(text, text, f"{text} {self.one('&&', '||')} {other}", other)

    def statement(self, depth: int = 0) -> str:
        name = self.one("B", "C", "D")
        inner = self.statement(depth + 1) if depth < 2 else f"{name}=i"
        leaves = self.one("", "; [[ $i == 2 ]] && break", "; [ $i = a ] && continue", f"; {name}+=+")
        listed = self.one("1 2 3", "$L", "${ARR[@]}", '"${ARR[@]}"')
        subject = self.one("$A", "$M", "$L", "$E", "$P")
        return self.one(
            f"{name}{self.one('=', '+=')}{self.one(*VALUES)}",
            f"if {self.test()}; then\n{inner}\nelif {self.test()}; then\nC=2\nelse\nD=3\nfi",
            f"{self.test()} && {name}=k",
            f"{self.test()} || {name}=o",
            f"{self.test()} && {name}=t || {name}=e",
            f"case {subject} in {self.one(*CASES)}) B=c0;; *.json) B=c1;; *) {inner} ;; esac",
            f"for i in {listed}; do {name}=${{{name}}}$i{leaves}; done",
            f'f() {{ local X=$1; [ "$1" = x ] && return; {name}=f$#$X; }}\nf {self.one("x", "$M 2", "a b", "$OPT")}',
            f"ARR+=({self.one(*VALUES)}); {name}=${{ARR[@]}}",
            f"while [ $# -gt {self.one('0', '1')} ]; do case $1 in u|w) {name}+=$2; shift;; esac; shift; done",
            f"set -- {self.one(*WORDS)} {self.one(*WORDS)}; {name}=x$#",
        )

    def script(self) -> str:
        body = "\n".join(self.statement() for _ in range(self.chance.randrange(1, 4)))
        words = " ".join(self.one(*WORDS) for _ in range(self.chance.randrange(1, 6)))
        return f"{BEFORE}{body}\nrun.py {words} --end\n"


def as_bash(scripts: list[str]) -> list[str]:
    """What bash starts, and has in three variables."""
    show = 'run.py() { printf "<%s>" "$@"; }'
    each = [f'(\nset -- u v "w x"\n{show}\n{text}printf "%s|%s|%s\\0" "$B" "$C" "$D"\n)\n' for text in scripts]
    found = subprocess.run(
        ["bash", "--norc"], input="".join(each), capture_output=True, text=True, timeout=60, check=False
    )
    return found.stdout.split("\0")[:-1]


def as_read(text: str) -> str:
    state = read_script(text, ScriptState("x.sh", {"1": "u", "2": "v", "3": "w x"}))
    values = (shell_value_to_text(state.variable_value(name) or "") for name in "BCD")
    return "".join(f"<{word}>" for word in state.commands[0][0][1:]) + "|".join(values)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_scripts_are_read_as_bash_runs_them() -> None:
    author = Author(7)
    scripts = [author.script() for _ in range(400)]
    answers = as_bash(scripts)
    assert len(answers) == len(scripts)
    for text, answer in zip(scripts, answers, strict=True):
        assert as_read(text) == answer, text


WRITTEN = pool(r"""
    declare -A B=([7b]=32 [13b]=40); S=13b; C=${B[$S]}; B= :: declare -A B; B[7b]=32; B["13b"]=40; C=${B[7b]}; B= ::
    B=$(( ${U:-3} * 2 )); C=$((N * ${Z:-5} + ${E:-7})) :: is() { [[ $1 == *70* ]]; }; is $M && B=y; is x || C=n ::
    f() { false; }; f || B=1 :: f() { local A=q C; C=1; B=$A; }; f; D=$A$C :: f() { return 1; }; f || B=1 ::
    f() { local A=2; g; }; g() { B=$A; }; f; C=$A :: V=B; export "$V"="6 7" :: V=C; declare "$V=6" ::
    V=B; export $V=$M :: for ((i=1; i<4; i++)); do B+=$i; done :: for i; do B+=$i; done ::
    Q=(1 2 3); B=$(( ${Q[0]} + ${Q[1]} * 2 )) :: if [ $A = y -o $A = x -a $N -eq 1 ]; then B=1; else B=2; fi ::
    B="${E:-"a b"}" :: if [ -z $E ]; then B=1; fi :: B=$((07 + N)); let C=N+2 D=3 :: unset A; B=${A:-gone} ::
    A=4; [ $A == 5 ] && B=five || B=other :: until [ $N -gt 4 ]; do N=$((N*2)); done; B=$N :: export B=5 C=6 ::
    ((N+=3)); B=$N :: while true; do B=1; break; done :: f() { B=1; return; B=2; }; f; C=$B
""")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_scripts_written_by_hand_are_read_as_bash_runs_them() -> None:
    scripts = [f"{BEFORE}{text}\nrun.py --end\n" for text in WRITTEN]
    for text, answer in zip(scripts, as_bash(scripts), strict=True):
        assert as_read(text) == answer, text
