"""Scripts made by chance of what launch scripts are made of are read as bash runs them."""

import random
import shutil
import subprocess

import pytest

from simcluster.importers.shell.script import read_script
from simcluster.importers.shell.state import State, joined

BEFORE = "A=x; N=1; E=; L=a-b-c; P=/u/v/w.json; M=70B; Z=0; T=true; ARR=(m 'n o' p); OPT='--p 1 --q  2'\nB=; C=; D=\n"


def pool(text: str) -> list[str]:
    """What stands between double colons."""
    return [each.strip() for each in text.replace("\n", " ").split(" :: ")]


TEXTS = pool("""$A :: "$A" :: ${A} :: x :: "x" :: y :: "y z" :: $M :: "${M}" :: 70B :: $E :: "$E" :: true :: $T""")
NUMBERS = pool("""$N :: ${N} :: 1 :: 0 :: $Z :: 8 :: "$N" :: $((N+1))""")
PATTERNS = pool(
    """x* :: *y :: 70? :: "$A"* :: *"$M"* :: [a-z] :: * :: *"x"* :: *$M* :: ${A}* :: [[:digit:]]* :: *"*"* :: @(x|y)"""
)
CASES = pool("""*"$M"* :: *"-b"* :: "$A" :: $E :: "7"* :: [0-9] :: *"*"* :: x|y :: *$A|zz""")
VALUES = pool(r"""
    ${A:-d} :: ${E:-d} :: ${E-d} :: ${E:+d} :: ${A:+d} :: ${P##*/} :: ${P%/*} :: ${P%.json} :: ${P#/} :: ${P%%/*} ::
    ${L//-/_} :: ${L/-/+} :: ${L%-*} :: ${L##*-} :: ${M^^} :: ${M,,} :: ${M:0:2} :: ${#L} :: ${#ARR[@]} ::
    ${ARR[1]} :: ${ARR[@]} :: ${ARR[*]} :: ${ARR[@]:1} :: ${ARR[-1]} :: ${U:-${A}} :: ${M//[0-9]/} :: ${P//\//.} ::
    $'a\tb' :: "a"'b'c :: $A$M :: $((N*8+2)) :: $((2**3)) :: $((7/2)) :: $((7%4)) :: $((N==1)) :: $(($N+${Z})) ::
    $(( N > 0 ? 4 : 2 )) :: `echo $A` :: $(echo $L | cut -d- -f2) :: $(echo $M | tr -d B) :: $(echo a b | wc -w) ::
    $(expr $N + 3) :: $(echo $L | grep -o b) :: $(echo $L | awk -F- '{print $3}') :: $(echo "$L" | sed s/-/+/g) ::
    $(printf '%s-' a b) :: $(f() { echo $1; }; f g) :: $P/$L/$A :: x-$A-$N.$L :: $A$M/y :: `echo q`$A`echo r` ::
    "$A"/$M/"$L"$N :: $A.$L,$N
""")
WORDS = pool(r"""
    $A :: "$L" :: "${ARR[@]}" :: ${ARR[@]} :: --x=$N :: "--y z" :: $E :: "$E" :: $(echo a b) :: "$(echo a b)" ::
    ${ARR[1]} :: --b="${ARR[*]}" :: "${ARR[1]}" :: -e${N}f :: "$A"$M :: $OPT :: "$OPT" :: ${OPT}x :: a\ b :: $P/$L/$A ::
    --c=$A-$M-$L.json :: "$A"/$M/$L :: --c=`echo q`/$M :: ${B:+--b $B} :: "${D:-}" :: $@ :: "$@" :: $((N+1)) ::
    --f=$((N*2)) :: x#y :: {1..3} :: a{b,c}d :: "it's" :: 'q r'
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
        other = self.one("(( N > Z ))", 'echo "$L" | grep -q -- -b', '! echo "$L" | grep -q z', 'test "$A" = x')
        return self.one(text, text, f"{text} {self.one('&&', '||')} {other}", other)

    def statement(self, depth: int = 0) -> str:
        name = self.one("B", "C", "D")
        inner = self.statement(depth + 1) if depth < 2 else f"{name}=i"
        leaves = self.one("", "; [[ $i == 2 ]] && break", "; [ $i = a ] && continue", f"; {name}+=+")
        listed = self.one("1 2 3", "$L", "${ARR[@]}", '"${ARR[@]}"', "{1..3}", "a{b,c}", "$(echo p q)")
        subject = self.one("$A", "$M", "$L", "$E", "${P##*/}")
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
    state = read_script(text, State("x.sh", {"1": "u", "2": "v", "3": "w x"}))
    values = (joined(state.get(name) or "") for name in "BCD")
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
    declare -A B=([7b]=32 [13b]=40); S=13b; C=${B[$S]}; D=${#B[@]} :: declare -A B; B[7b]=32; B["13b"]=40; C=${B[7b]} ::
    declare -A B=([q]=1 [r]=2); for k in "${!B[@]}"; do D+=$k; done; D=${#D}; B= ::
    ARR[1]=y; ARR[3]=z; B=${ARR[*]} :: B=$(( ${U:-3} * 2 )); C=$((N * ${Z:-5} + ${E:-7})) ::
    f() { echo "$(( $1 * 2 ))"; }; B=$(f 4) :: f() { return 1; }; if f; then B=1; else B=2; fi; f || C=3; f && D=4 ::
    is() { [[ $1 == *70* ]]; }; is $M && B=y; is x || C=n ::
    is() { echo $M | grep -q 8; }; if is; then B=y; else B=n; fi ::
    f() { local A=q C; C=1; B=$A; }; f; D=$A$C :: f() { local A=2; g; }; g() { B=$A; }; f; C=$A ::
    (B=1; A=2); C=$A; B= :: V=B; export "$V"="6 7" :: V=C; declare "$V=6" :: V=B; export $V=$M ::
    for a in TP=2 "PP=4 x"; do K=$(echo $a | cut -f1 -d=); L=${#K}; export "$K"="${a:$L+1}"; done; B=$TP; C=$PP ::
    set -- -t 4 -vp2 z; while getopts "t:p:v" o; do case $o in t) B=$OPTARG;; p) C=$OPTARG;; v) D=v;; esac; done ::
    set -- a b c; B="${@: -1}"; C=${*:2:1} :: [[ llama3-8b =~ ([0-9]+)b$ ]] && B=${BASH_REMATCH[1]} ::
    B=$(seq 3 | tail -1); C=$(seq -s, 0 3); for i in $(seq 2 2 6); do D+=$i; done ::
    B=$(basename /a/b.sh .sh); C=$(dirname /a/b/c); D=$(basename $P) :: B=${L:$((N+1)):N}; C=${L:2} :: B=${L: -2} ::
    for i; do B+=$i; done ::
    read -r B C < <(echo "32 4096") :: mapfile -t Q < <(printf 'a b\nc\n'); B=${#Q[@]}${Q[0]} ::
    Q=(1 2 3); i=1; B=$(( ${Q[0]} + Q[i] * 2 )); C=$((${#Q[@]} - 1)) :: B=$(echo -e "a\tb" | cut -f2) ::
    if [ \( 1 = 2 -o 2 = 2 \) -a $N -eq 1 ]; then B=1; else B=2; fi :: f() { false; }; f || B=1 ::
    f() { grep -q b <<< "$1"; }; f abc && B=1; f x || C=1 :: B=$(echo $L | cut -d- -f2-); C=$(echo $M | tr -cd 0-9)
""")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_scripts_written_by_hand_are_read_as_bash_runs_them() -> None:
    scripts = [f"{BEFORE}{text}\nrun.py --end\n" for text in WRITTEN]
    for text, answer in zip(scripts, as_bash(scripts), strict=True):
        assert as_read(text) == answer, text
