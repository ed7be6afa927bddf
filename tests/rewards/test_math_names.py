"""How answers name what they give: pairs "answer  ~~  reference answer" that mean the same, and near ones that do not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlvlm.rewards import score
from rlvlm.rewards.math_compare import same_answer
from rlvlm.rewards.math_names import read_named

RIGHT = r"""
(p,q)=(3,2) ~~ (3,2)
(x, y) = (3, 2) ~~ (3,2)
|AB|=1 ~~ 1
AB:BC=3:2 ~~ 3:2
\angle B=30^\circ ~~ 30
\angle B=30^\circ ~~ 30^\circ
\angle ABC = 30 ~~ 30^\circ
\overline{AB}=5 ~~ 5
\text{Area}=25 ~~ 25
\sin A=3/5 ~~ 3/5
\sin A = \frac{3}{5} ~~ \frac35
\approx 5.2 ~~ 5.2
x \approx 5.2 ~~ 5.2
x != 3 ~~ x \neq 3
x \ne 3 ~~ x \neq 3
(1;2) ~~ (1,2)
\{1;2\} ~~ \{1,2\}
[1;2] ~~ [1,2]
\left[\begin{array}{cc}1&2\\3&4\end{array}\right] ~~ \begin{pmatrix}1&2\\3&4\end{pmatrix}
\left(\begin{array}{c}1\\2\end{array}\right) ~~ \begin{pmatrix}1\\2\end{pmatrix}
12 \text{ square units} ~~ 12
12 ~~ 12 \text{ square units}
12 square units ~~ 12
12 units^2 ~~ 12
12\text{ units}^2 ~~ 12
11,\! 111 ~~ 11111
11,\!111 ~~ 11111
6, 8 ~~ 6 \text{ and } 8
8, 6 ~~ 6 \text{ and } 8
6 and 8 ~~ 6 \text{ and } 8
6 or 8 ~~ 6 \text{ and } 8
(q,p)=(2,3) ~~ (p,q)=(3,2)
p=3, q=2 ~~ (p,q)=(3,2)
(p,q)=(3,2) ~~ p=3, q=2
(3,2) ~~ (p,q)=(3,2)
p,q=3,2 ~~ (3,2)
(p, q, r) = (1, 2, 3) ~~ (1,2,3)
(a, b) = (\frac12, \sqrt{3}) ~~ (0.5, \sqrt3)
(x,y)=(1,2) \text{ or } (2,1) ~~ (2,1), (1,2)
(x,y)=(1,2),(2,1) ~~ (2,1), (1,2)
(x_1, x_2) = (1, 2) ~~ (1,2)
(r,\theta) = (3, \pi/2) ~~ (3, \frac{\pi}{2})
|AB| = 2\sqrt{3} ~~ 2\sqrt3
\lvert AB \rvert = 1 ~~ 1
\left|AB\right|=1 ~~ 1
|\overrightarrow{AB}|=5 ~~ 5
|\vec{a}|=5 ~~ 5
|\vec a + \vec b| = 5 ~~ 5
\|v\| = 5 ~~ 5
|z|=\sqrt{2} ~~ \sqrt{2}
|AB|=1 ~~ AB=1
|AB|=1 ~~ BA = 1
AB=5 ~~ 5
AB = 5\text{ cm} ~~ 5
AB = 5\text{ cm} ~~ 5\text{ cm}
\overline{AB} = 5 ~~ AB=5
5 ~~ \overline{AB}=5
\angle B=30^\circ ~~ \angle ABC=30^\circ
\angle CBA=30^\circ ~~ \angle ABC=30^\circ
m\angle B = 30 ~~ 30^\circ
∠B = 30° ~~ 30
∠ABC=30° ~~ 30
\angle 1 = 50^\circ ~~ 50
\angle A + \angle B = 90^\circ ~~ 90
\angle\alpha = 45^\circ ~~ 45
\text{Area} = 25\pi ~~ 25\pi
\text{Area of } \triangle ABC = 6 ~~ 6
\text{Area}(ABC) = 6 ~~ 6
[ABC] = 6 ~~ 6
S_{\triangle ABC} = 6 ~~ 6
S_{ABC}=6 ~~ 6
Area = 25 ~~ \text{Area}=25
\text{Area} = 25 \text{ cm}^2 ~~ 25
\text{Area} = \frac{1}{2} \cdot 10 \cdot 5 = 25 ~~ 25
A = \frac{1}{2}bh = 25 ~~ 25
A = \pi r^2 = 25\pi ~~ 25\pi
\text{The area is } 25 ~~ 25
The area is 25 ~~ 25
Area: 25 ~~ 25
\sin A=3/5 ~~ \sin A = 0.6
\sin\theta=\frac{3}{5} ~~ \frac{3}{5}
\sin \angle ABC = \frac35 ~~ 0.6
\tan(A+B)=2 ~~ 2
\cos 2\theta = 0.5 ~~ 1/2
\sin^2 \theta = 1/4 ~~ 1/4
\sin 30^\circ = 1/2 ~~ 1/2
AB : BC = 3 : 2 ~~ 3:2
\frac{AB}{BC}=\frac{3}{2} ~~ \frac32
\frac{AB}{BC}=\frac{3}{2} ~~ 3:2
AB/BC = 3/2 ~~ 3/2
a:b:c = 1:2:3 ~~ 1:2:3
3:2 ~~ \frac{3}{2}
\approx 5.2 ~~ \approx 5.2
5.2 ~~ \approx 5.2
≈5.2 ~~ 5.2
x ≈ 5.2 ~~ 5.2
x = 5.2 ~~ x \approx 5.2
AB \approx 5.2 ~~ 5.2
2\sqrt{3} \approx 3.46 ~~ 2\sqrt{3}
2\sqrt{3} \approx 3.46 ~~ 3.46
x = 2\sqrt{3} \approx 3.46 ~~ 2\sqrt{3}
\frac{26}{3} \approx 8.67 ~~ 8.67
\frac{26}{3} \approx 8.67 \text{ cm} ~~ 8.67
\text{Area} \approx 25.1 ~~ 25.1
\text{Area} \approx 25.1 \text{ cm}^2 ~~ 25.1
\text{approximately } 5.2 ~~ 5.2
about 5.2 ~~ 5.2
\pi \approx 3.14 ~~ \pi
x \neq 3 ~~ x \neq 3
x ≠ 3 ~~ x \neq 3
x \not= 3 ~~ x \neq 3
3 \neq x ~~ x \neq 3
x \neq 3, 4 ~~ x \neq 3, x \neq 4
x \neq 3, 4 ~~ x \neq 4, 3
x \neq \pm 2 ~~ x \neq 2, -2
(-\infty,3)\cup(3,\infty) ~~ x \neq 3
(-\infty,3)\cup(3,\infty) ~~ x != 3
5!=120 ~~ 120
5! = 120 ~~ 120
(1; 2) ~~ (1, 2)
(1;2),(3;4) ~~ (1,2),(3,4)
(1;2);(3;4) ~~ (1,2),(3,4)
(3;4);(1;2) ~~ (1,2),(3,4)
\{1;2;3\} ~~ \{1,2,3\}
\{(1;2);(3;4)\} ~~ \{(1,2),(3,4)\}
[1;2) ~~ [1,2)
(-\infty;1)\cup(2;+\infty) ~~ (-\infty,1)\cup(2,\infty)
x \in (1;2) ~~ (1,2)
1; 2 ~~ 1, 2
x=1; x=2 ~~ 1, 2
\left[\begin{array}{cc}1&2\\3&4\end{array}\right] ~~ \begin{bmatrix}1&2\\3&4\end{bmatrix}
\left[ \begin{array}{rr} 1 & 2 \\ 3 & 4 \\ \end{array} \right] ~~ \begin{pmatrix}1&2\\3&4\end{pmatrix}
\left( \begin{matrix} 1 & 2 \\ 3 & 4 \end{matrix} \right) ~~ \begin{pmatrix}1&2\\3&4\end{pmatrix}
\left[\begin{array}{c}1\\2\end{array}\right] ~~ (1,2)
A = \left[\begin{array}{cc}1&2\\3&4\end{array}\right] ~~ \begin{bmatrix}1&2\\3&4\end{bmatrix}
\left[\begin{smallmatrix}1&2\\3&4\end{smallmatrix}\right] ~~ \begin{bmatrix}1&2\\3&4\end{bmatrix}
[1,2;3,4] ~~ \begin{bmatrix}1&2\\3&4\end{bmatrix}
\begin{cases} x=1 \\ y=2 \end{cases} ~~ x=1, y=2
\left\{\begin{array}{l} x=1 \\ y=2 \end{array}\right. ~~ y=2, x=1
\begin{cases} x=1 \\ y=2 \end{cases} ~~ (1,2)
12 \text{ sq. units} ~~ 12
12 \text{ sq units} ~~ 12
12\text{ square units} ~~ 12 \text{ units}^2
12 \text{ square units} ~~ 12 \text{ cm}^2
12 \text{ units squared} ~~ 12
12 \text{ cubic units} ~~ 12
12 \text{ unit} ~~ 12
12 units² ~~ 12
12 cm2 ~~ 12 cm^2
12 cm squared ~~ 12
12\sqrt{3} \text{ square units} ~~ 12\sqrt{3}
25\pi \text{ square units} ~~ 25\pi
\frac{1}{2} \text{ square units} ~~ 0.5
12 \text{ square inches} ~~ 12
12 \text{ square feet} ~~ 12 \text{ ft}^2
11{,}111 ~~ 11,\! 111
11,\!111 ~~ 11,\! 111
11111 ~~ 11,\! 111
1,\! 234,\! 567 ~~ 1234567
6,8 ~~ 6 \text{ and } 8
6\text{ and }8 ~~ 6 \text{ and } 8
6\text{and}8 ~~ 6 \text{ and } 8
8 \text{ and } 6 ~~ 6 \text{ and } 8
\{6,8\} ~~ 6 \text{ and } 8
6 \text{ or } 8 ~~ 6 \text{ and } 8
x=6, x=8 ~~ 6 \text{ and } 8
x = 6 \text{ and } x = 8 ~~ 6 \text{ and } 8
\text{6 and 8} ~~ 6 \text{ and } 8
$6$ and $8$ ~~ 6 \text{ and } 8
6 & 8 ~~ 6 \text{ and } 8
12 cm ~~ 12
1 ~~ 7 \mod 3
7 \bmod 3 ~~ 1
1, 2 ~~ x=1, y=2
x_1=3, x_2=2 ~~ 2, 3
2, 3 ~~ x_1=3, x_2=2
x+y=5 ~~ 5
a+b=7 ~~ 7
m+n = 25 ~~ 25
xy=6 ~~ 6
P(A) = 1/3 ~~ 1/3
P(A|B) = 1/3 ~~ 1/3
P(X \geq 2) = 0.3 ~~ 0.3
E[X] = 3 ~~ 3
f(2)=5 ~~ 5
f(x)=2x ~~ 2x
f^{-1}(x) = 2x ~~ 2x
f'(x)=2x ~~ 2x
\frac{dy}{dx}=2x ~~ 2x
y' = 2x ~~ 2x
\vec{v} = (1,2) ~~ (1,2)
\vec{v} = \begin{pmatrix}1\\2\end{pmatrix} ~~ (1,2)
\hat{y} = 3 ~~ 3
\bar{x} = 3 ~~ 3
x_{\max} = 3 ~~ 3
v_0 = 3 \text{ m/s} ~~ 3
5 = x ~~ 5
30^\circ = \angle B ~~ 30
x = y = 5 ~~ 5
x:y = 3:2 ~~ 3:2
C = (1, 2) ~~ (1,2)
Vertex = (1,-2) ~~ (1,-2)
\text{Vertex: }(1,-2) ~~ (1,-2)
k \in \{1,2\} ~~ \{1,2\}
\text{Final answer: } 5 ~~ 5
"""

WRONG = r"""
(p,q)=(2,3) ~~ (3,2)
|AB|=2 ~~ 1
AB:BC=2:3 ~~ 3:2
\angle B=31^\circ ~~ 30^\circ
\approx 5.2 ~~ 5.3
x != 3 ~~ 3
x \neq 3 ~~ x = 3
x \neq 3 ~~ 3
x != 3 ~~ x \neq 4
(2;1) ~~ (1,2)
[1;2) ~~ [1,2]
\left[\begin{array}{cc}1&2\\3&4\end{array}\right] ~~ \begin{pmatrix}1&2\\4&3\end{pmatrix}
13 units^2 ~~ 12
6 ~~ 6 \text{ and } 8
68 ~~ 6 \text{ and } 8
5 7 ~~ 12 cm
5 7 ~~ 57
(q,p)=(3,2) ~~ (p,q)=(3,2)
p=2, q=3 ~~ (p,q)=(3,2)
(p,q)=(2,3) ~~ p=3, q=2
(2,3) ~~ (p,q)=(3,2)
(p, q, r) = (1, 2) ~~ (1,2)
(p,q) = 3 ~~ 3
|x|=3 ~~ 3
|x|=3 ~~ x=3
|AB|=1 ~~ BC=1
|AB|=1 ~~ |BC|=1
AB = 5\text{ cm} ~~ 5\text{ m}
\overline{CD} = 5 ~~ AB=5
\overline{AB}=5 ~~ \overline{AC}=5
\angle B=30^\circ ~~ \angle C=30^\circ
\angle ACB=30^\circ ~~ \angle ABC=30^\circ
\angle B = 30^\circ ~~ 60
\angle B \neq 30^\circ ~~ 30
\text{Area}=25 ~~ 24
\text{Perimeter}=25 ~~ \text{Area}=25
V = 3 = 4 ~~ 4
The area is not 25 ~~ 25
Area is 25 or 26 ~~ 25
Area \neq 25 ~~ 25
\sin A = 4/5 ~~ 3/5
\cos A = 3/5 ~~ \sin A = 3/5
\sin 30^\circ = 3/5 ~~ 3/5
AB:BC=3:2 ~~ AB:BC=2:3
\frac{AB}{BC}=\frac{3}{2} ~~ \frac23
a:b:c = 1:3:2 ~~ 1:2:3
2:3 ~~ \frac{3}{2}
6:4 ~~ 3:2
\approx 5.25 ~~ 5.2
2\sqrt{3} \approx 3.56 ~~ 3.56
3 \approx 5 ~~ 5
3 \approx 5 ~~ 3
3.14 ~~ \pi
\approx 3.14 ~~ \pi
x != 3 ~~ x = 3
x \neq 3, 4 ~~ 3, 4
x \neq 3, 4 ~~ x \neq 3, x = 4
x\neq 2, x\neq 3 ~~ x=2, x=3
x \neq \pm 2 ~~ x = \pm 2
(-\infty,4)\cup(4,\infty) ~~ x \neq 3
\neq 3 ~~ 3
!= 3 ~~ 3
5!=121 ~~ 121
5 != 3 ~~ 3
a \neq b ~~ a = b
3 \neq 3 ~~ 3
not 3 ~~ 3
(1;2) ~~ (2;1)
(1;3),(2;4) ~~ (1,2),(3,4)
(-\infty;1]\cup(2;+\infty) ~~ (-\infty,1)\cup(2,\infty)
\begin{bmatrix}1&3\\2&4\end{bmatrix} ~~ \left[\begin{array}{cc}1&2\\3&4\end{array}\right]
\begin{cases} x=2 \\ y=1 \end{cases} ~~ x=1, y=2
12 \text{ square units} ~~ 12 \text{ cubic units}
12 \text{ units} ~~ 12 \text{ square units}
13 \text{ square units} ~~ 12
11112 ~~ 11,\! 111
6 \text{ and } 9 ~~ 6 \text{ and } 8
8 ~~ 6 \text{ and } 8
14 ~~ 6 \text{ and } 8
5 7 ~~ 35
5 7 ~~ 12
5 12 ~~ 12 cm
2 ~~ 7 \mod 3
2, 1 ~~ x=1, y=2
2x=10 ~~ 10
x+1=5 ~~ 5
x^2=25 ~~ 25
5 ~~ x+y=5
x(x+1)=6 ~~ 6
\sqrt{x}=3 ~~ 3
\ln x = 2 ~~ 2
\frac{1}{x}=3 ~~ 3
2x+1=0 ~~ 0
P(A)=1/3 ~~ P(B)=1/3
\vec{v} = (2,1) ~~ (1,2)
n! = 24 ~~ 24
\text{Yes} ~~ \text{No}
"""

SLOW = {
    "nested logarithms": r"\log " * 6 + "x",
    "logarithms in brackets": r"\log(" * 6 + "x" + ")" * 6,
    "one fraction after another": "1/2" * 20,
    "mixed numbers": "1 1/2" * 30,
    "bars side by side": "|x|" * 50,
    "bars around numbers": "|3|" * 50,
    "floors": r"\lfloor" * 20 + "2" + r"\rfloor" * 20,
}


def _pairs(table: str) -> list[tuple[str, str]]:
    pairs = [line.split(" ~~ ") for line in table.strip().splitlines()]
    return [(answer, gold) for answer, gold in pairs]


@pytest.mark.parametrize(("answer", "gold"), _pairs(RIGHT))
def test_an_answer_that_names_what_it_gives_is_right(answer: str, gold: str) -> None:
    assert same_answer(gold, answer)


@pytest.mark.parametrize(("answer", "gold"), _pairs(WRONG))
def test_another_value_name_or_order_is_wrong(answer: str, gold: str) -> None:
    assert not same_answer(gold, answer)


@pytest.mark.parametrize(
    "text", ["2x", "x^{2}", "x+1", "x(x+1)", r"\sqrt{x}", r"\pi", "5", r"\ln x", "not x", "|x|", ""]
)
def test_a_formula_in_one_unknown_is_no_name(text: str) -> None:
    assert read_named(f"{text} = 5") is None


def test_a_list_may_be_given_one_value_a_box() -> None:
    gold = r"6 \text{ and } 8"
    assert score("math", r"\boxed{6} and \boxed{8}", gold) == 1.0
    assert score("math", r"\boxed{8} or \boxed{6}", gold) == 1.0
    assert score("math", r"\boxed{6} and \boxed{9}", gold) == 0.0
    assert score("math", r"\boxed{6}, \boxed{7} and \boxed{8}", gold) == 0.0
    assert score("math", r"\boxed{6} or \boxed{8}", "6") == 0.0
    assert score("math", r"\boxed{2} and \boxed{3}", "(3,2)") == 0.0


def test_what_the_parser_takes_long_over_is_not_parsed() -> None:
    """In a process of its own, which can be ended: the parser holds the interpreter."""
    program = "import sys; from rlvlm.rewards.math_compare import same_answer; print([same_answer('x+7', text) for text in sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", program, *SLOW.values()], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str([False] * len(SLOW))
