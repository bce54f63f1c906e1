"""Further programs, in the form of corpus.py: runtimes of languages with collectors, timers, fibers
or compilers of their own, sanitizers, and a profiler."""

from corpus import Program

GUILE = """
(use-modules (ice-9 threads))
(define (work seed)
  (let ((table (make-hash-table 60000)))
    (let fill ((i 0) (state seed))
      (when (< i 60000)
        (let ((next (modulo (+ (* state 1103515245) 12345) 2147483648)))
          (hash-set! table next (cons (number->string next) (make-vector 16 i)))
          (if (= 0 (modulo i 20000)) (gc))
          (fill (+ i 1) next))))
    (let ((keys (sort (hash-map->list (lambda (key value) key) table) <)))
      (let sum ((rest keys) (total 0))
        (if (null? rest) total
            (let ((value (hash-ref table (car rest))))
              (sum (cdr rest) (modulo (+ (* total 31) (string-length (car value)) (vector-ref (cdr value) 9)) 1000000007))))))))
(for-each (lambda (thread) (display (join-thread thread)) (newline))
          (map (lambda (seed) (call-with-new-thread (lambda () (work seed)))) (iota 8)))
"""

SBCL = """
(setf (sb-ext:bytes-consed-between-gcs) (* 20 1024 1024))
(defvar *ticks* 0)
(defvar *timer* (sb-ext:make-timer (lambda () (incf *ticks*) (make-list 1000)) :thread sb-thread:*current-thread*))
(defun work ()
  (let ((table (make-hash-table)) (state 7) (sum 0))
    (dotimes (i 600000)
      (setf state (mod (+ (* state 1103515245) 12345) 2147483648))
      (setf (gethash state table) (cons (format nil "value ~a" i) (make-list 8 :initial-element i))))
    (dolist (key (sort (loop for key being the hash-keys of table collect key) #'<) sum)
      (let ((value (gethash key table)))
        (setf sum (mod (+ (* sum 31) (length (car value)) (reduce #'+ (cdr value))) 1000000007))))))
(sb-ext:schedule-timer *timer* 0.01 :repeat-interval 0.01)
(format t "~a~%" (work))
(sb-ext:unschedule-timer *timer*)
(format t "~a~%" (> *ticks* 9))
"""

MAXIMA = """
p : expand((a + b + c + d + 1)^16)$
print(nterms(p), coeff(coeff(coeff(coeff(p, a, 4), b, 3), c, 2), d, 3))$
print(factor(expand((x^8 - 3*x*y + 1)*(x^5 + y^4 - 7)*(x^3*y - y + 2))))$
print(subst([a = 1, b = 2, c = 3, d = 4], p))$
"""

LUAJIT = """
local jit = require("jit")
local traces = 0
jit.attach(function(what) if what == "stop" then traces = traces + 1 end end, "trace")
local state, t = 7, {}
for i = 1, 1000000 do
  state = (state * 1103515245 + 12345) % 2147483648
  t[i] = { key = state, text = "value " .. state % 400000 }
end
table.sort(t, function(a, b) if a.key ~= b.key then return a.key < b.key end return a.text < b.text end)
local sum = 0
for i = 1, #t do sum = (sum * 31 + t[i].key + #t[i].text) % 1000000007 end
print(traces > 0, #t, sum)
"""

CHDB = """
import chdb
def ask(query): print(chdb.query(query + " settings max_threads = 2", "CSV"), end="")
ask("select sum(c), max(m) from (select cityHash64(number) % 600000 as k, count() as c, max(hex(MD5(toString(number)))) as m from numbers(2000000) group by k)")
ask("select hex(sipHash128(number)) as h, number from numbers(3000000) order by h desc limit 3 offset 1500000")
"""

WASMTIME = """
from wasmtime import Config, Engine, Instance, Module, Store, _bindings as c
config, pool = Config(), c.wasmtime_pooling_allocation_config_new()
c.wasmtime_pooling_allocation_config_total_memories_set(pool, 2)
c.wasmtime_pooling_allocation_config_max_memory_size_set(pool, 256 << 20)
c.wasmtime_pooling_allocation_strategy_set(config.ptr(), pool)
c.wasmtime_pooling_allocation_config_delete(pool)
engine = Engine(config)
module = Module(engine, '''(module (memory (export "memory") 1600)
  (func (export "fill") (param $seed i32) (local $at i32)
    loop $next
      (i32.store (local.get $at) (i32.mul (i32.add (local.get $at) (local.get $seed)) (i32.const 0x9E3779B1)))
      (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 64))) (i32.const 104857600)))
    end)
  (func (export "sum") (param $steps i32) (result i32) (local $at i32) (local $sum i32)
    loop $next
      (local.set $sum (i32.add (i32.mul (local.get $sum) (i32.const 31))
        (i32.load (i32.and (i32.mul (local.get $at) (i32.const 4160)) (i32.const 0x3ffffc0)))))
      (br_if $next (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 1))) (local.get $steps)))
    end
    local.get $sum))''')
for turn in range(2):
    pair = store = None  # frees the only two slots of the pool
    store = Store(engine)
    pair = [Instance(store, module, []).exports(store) for _ in range(2)]
    for seed, exports in enumerate(pair):
        exports["fill"](store, seed + turn)
    print(*(exports["sum"](store, 400_000) for exports in pair))
"""

FIBERS = """
def deep(left, text) = left == 0 ? Fiber.yield(text.sum) : deep(left - 1, text) + left
fibers = 10_000.times.map { |n| Fiber.new { text = "#{n} " * 1500; deep(30, text) + text.bytesize } }
puts fibers.sum(&:resume)
GC.start
puts fibers.count(&:alive?), fibers.each_with_index.sum { |fiber, n| fiber.resume(n) * (n % 7) }
"""

D = """
import core.memory, core.thread, std.conv, std.stdio;
class Node { Node left, right; uint key; string text; this(uint key) { this.key = key; text = key.to!string; } }
ulong walk(Node node) { return node is null ? 0 : (walk(node.left) * 31 + node.key + node.text.length + walk(node.right) * 7) % 1_000_000_007; }
ulong work(uint state) {
    Node root;
    foreach (i; 0 .. 300_000) {
        state = state * 1_664_525 + 1_013_904_223;
        Node* at = &root;
        while (*at !is null) at = state < (*at).key ? &(*at).left : &(*at).right;
        *at = new Node(state);
        if (i % 100_000 == 0) GC.collect();
    }
    return walk(root);
}
class Worker : Thread { uint seed; ulong sum; this(uint seed) { this.seed = seed; super({ sum = work(this.seed); }); } }
void main() {
    Worker[] workers;
    foreach (seed; 0 .. 4) workers ~= new Worker(seed);
    foreach (worker; workers) worker.start();
    foreach (worker; workers) { worker.join(); writeln(worker.sum); }
}
"""

LIBGC = """
#define GC_THREADS
#include <gc.h>
#include <pthread.h>
#include <stdio.h>
struct node { struct node *left, *right; unsigned key; char text[44]; };
static unsigned long walk(struct node *n) {
    return n ? (walk(n->left) * 31 + n->key + n->text[0] + walk(n->right) * 7) % 1000000007 : 0;
}
static void *work(void *seed) {
    struct node *root = 0;
    unsigned state = (unsigned)(unsigned long)seed;
    for (int i = 0; i < 300000; i++) {
        state = state * 1664525 + 1013904223;
        struct node **at = &root;
        while (*at) at = state < (*at)->key ? &(*at)->left : &(*at)->right;
        *at = GC_MALLOC(sizeof **at);
        (*at)->key = state;
        snprintf((*at)->text, sizeof (*at)->text, "%u", state);
        GC_MALLOC(200);
    }
    return (void *)walk(root);
}
int main(void) {
    GC_INIT();
    pthread_t threads[4];
    for (unsigned long n = 0; n < 4; n++) if (GC_pthread_create(&threads[n], 0, work, (void *)n)) return 9;
    for (int n = 0; n < 4; n++) { void *sum; GC_pthread_join(threads[n], &sum); printf("%lu\\n", (unsigned long)sum); }
    printf("%d\\n", GC_get_gc_no() > 3);
}
"""

SANITIZED = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static void *work(void *seed) {
    unsigned state = (unsigned)(unsigned long)seed;
    unsigned long sum = 0;
    unsigned **all = calloc(20000, sizeof *all);
    for (int i = 0; i < 20000; i++) { all[i] = malloc(400); for (int j = 0; j < 100; j++) all[i][j] = state = state * 1664525 + 1013904223; }
    for (int pass = 0; pass < 500; pass++)
        for (int i = 0; i < 20000; i++) sum = (sum * 31 + all[i][(i + pass) % 100]) % 1000000007;
    for (int i = 0; i < 20000; i++) free(all[i]);
    free(all);
    return (void *)sum;
}
int main(void) {
    pthread_t threads[4];
    for (unsigned long n = 0; n < 4; n++) if (pthread_create(&threads[n], 0, work, (void *)n)) return 9;
    for (int n = 0; n < 4; n++) { void *sum; pthread_join(threads[n], &sum); printf("%lu\\n", (unsigned long)sum); }
}
"""

HEAPTRACK = """
import hashlib, sys
table = {hashlib.md5(b"%d" % at).hexdigest() * 20: at for at in range(200_000)}
digest = hashlib.sha256()
for key in sorted(table): digest.update(b"%s %d" % (key.encode(), table[key]))
open(sys.argv[1], "w").write(digest.hexdigest() + "\\n")
"""


def sanitized(name, option):
    return Program(name, ["gcc", "libc6-dev"], "gcc --version", f"""
cat >work.c <<'END'{SANITIZED}END
gcc -g -O1 -fsanitize={option} -o work work.c -lpthread && run ./work
""", unmanaged="all of it: the sanitizer reserves most of the address space. softswap prints a note")


PROGRAMS = [
    Program("Guile with 8 threads", ["guile-3.0"], "guile --version", f"""
cat >work.scm <<'END'{GUILE}END
guile --no-auto-compile -c '(use-modules (system base compile)) (compile-file "work.scm" #:output-file "work.go")' &&
    run guile --no-auto-compile -c '(load-compiled "work.go")'
"""),
    Program("SBCL with a timer", ["sbcl"], "sbcl --version", f"""
cat >work.lisp <<'END'{SBCL}END
run sbcl --noinform --dynamic-space-size 1GB --no-sysinit --no-userinit --disable-debugger --load work.lisp --quit
"""),
    Program("Maxima", ["maxima"], "maxima --version", f"""
cat >work.mac <<'END'{MAXIMA}END
# GCL sizes its heap by the machine's memory.
export HOME="$PWD" GCL_MEM_MULTIPLE=$(awk '/^MemTotal:/ {{ print 1200000 / $2 }}' /proc/meminfo)
run maxima --very-quiet <work.mac | sha256sum
""", unmanaged="its heap, which directly follows its data"),
    Program("LuaJIT", ["luajit"], "luajit -v", f"""
cat >work.lua <<'END'{LUAJIT}END
run luajit work.lua
""", unmanaged="its machine code"),
    Program("chdb", ["python3-venv"], "", f"""
cat >work.py <<'END'{CHDB}END
run "$PYTHON" work.py
""", share=0.3, wheels=["chdb"],
            unmanaged="its library, which is half of its memory"),
    Program("pandoc", ["pandoc"], "pandoc --version", """
perl -e 'srand 7; my @w = map { join "", map { chr 97 + rand 26 } 1..3 + rand 6 } 1..500; my $t = sub { join " ", map { $w[rand @w] } 1..$_[0] };
    for my $n (1..1200) { print "# ", $t->(3), "\\n\\n", $t->(40), " *", $t->(4), "* and `", $t->(2), "`, [", $t->(2), "](http://example.org/$n).\\n\\n";
    print "- **", $t->(2), "** ", $t->(9), "\\n" for 1..4; print "\\n" }' >in.md
run pandoc -f markdown -t html in.md | sha256sum
""", share=0.4, unmanaged="its code, which is a third of its memory"),
    Program("wasmtime (pooling allocator)", ["python3-venv"], "", f"""
cat >work.py <<'END'{WASMTIME}END
run "$PYTHON" work.py
""", wheels=["wasmtime"]),
    Program("ruby with 10000 fibers", ["ruby"], "ruby --version", f"""
cat >work.rb <<'END'{FIBERS}END
run ruby work.rb
"""),
    Program("D with threads", ["gdc"], "gdc --version", f"""
cat >work.d <<'END'{D}END
gdc -O2 -o work work.d && run ./work
"""),
    Program("Boehm collector in C", ["gcc", "libc6-dev", "libgc-dev"], "dpkg-query -W libgc-dev", f"""
cat >work.c <<'END'{LIBGC}END
gcc -O2 -o work work.c -lgc -lpthread && run ./work
"""),
    sanitized("AddressSanitizer", "address"),
    sanitized("ThreadSanitizer", "thread"),
    Program("heaptrack of python3", ["heaptrack", "python3"], "heaptrack --version", f"""
cat >work.py <<'END'{HEAPTRACK}END
run heaptrack -o out /usr/bin/python3 work.py answer >log 2>&1; status=$?
ls out.* >/dev/null && cat answer; exit $status
"""),
]
