#!/usr/bin/env python3
"""Tests order.py with small crates that it must accept or refuse."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
import order


def faults(files):
    """Returns the output of order.py for a crate of these files, by name."""
    with tempfile.TemporaryDirectory() as directory:
        for name, text in files.items():
            file = Path(directory, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return order.faults_of(Path(directory))


ROOM = {"lib.rs": "mod room;", "room/mod.rs": "", "room/child.rs": ""}


class Accepted(unittest.TestCase):
    def accept(self, files):
        self.assertEqual(faults(files), [])

    def test_a_use_of_an_earlier_file(self):
        self.accept({"lib.rs": "mod a;\nmod b;", "a.rs": "", "b.rs": "use crate::a::A;"})

    def test_a_parent_that_uses_its_child(self):
        self.accept(ROOM | {"room/mod.rs": "mod child;\nuse child::Child;\nfn f(c: Child) {}"})

    def test_a_child_that_uses_its_parent(self):
        self.accept(ROOM | {"room/mod.rs": "mod child;\npub struct Held;",
                            "room/child.rs": "use super::Held;"})

    def test_a_re_export_is_no_use(self):
        self.accept(ROOM | {"room/mod.rs": "mod child;\npub use child::Child;\npub struct Held;",
                            "room/child.rs": "use super::Held;\npub struct Child(Held);"})

    def test_a_name_of_the_parent_that_leads_elsewhere(self):
        self.accept({"lib.rs": "mod a;\nmod room;", "a.rs": "pub struct A;",
                     "room/mod.rs": "mod child;\nuse crate::a::A;\nfn f(a: A) { child::g() }",
                     "room/child.rs": "use super::A;\npub fn g() {}"})

    def test_comments_strings_and_lifetimes(self):
        self.accept({"lib.rs": "mod a;\nmod b;", "b.rs": "",
                     "a.rs": """//! [`crate::b`]
                              fn f<'a>(x: &'a str) -> char { /* crate::b::f() */ '"' }
                              const C: &str = r#"use crate::b::"B";"#;"""})

    def test_uses_in_tests_and_models(self):
        self.accept({"lib.rs": "mod a;\nmod b;", "b.rs": "", "a_tests.rs": "use crate::b::B;",
                     "a.rs": "#[cfg(test)]\nuse crate::b::B;\n"
                             "#[cfg(all(test, not(feature = \"loom\")))]\nmod tests { use crate::b::B; }"})

    def test_a_mod_with_a_body(self):
        self.accept({"lib.rs": "mod a;\nmod b;", "a.rs": "pub struct A;",
                     "b.rs": "struct B;\nmod inner { use super::B; use crate::a::A; }\n"
                             "use inner::C;"})


class Refused(unittest.TestCase):
    def refuse(self, files, *expected):
        self.assertEqual(faults(files), list(expected))

    def test_a_use_of_a_later_file(self):
        for line in ("use crate::b::B;", "use super::b;", "fn f() { crate::b::g() }",
                     "use crate::{b::{self, B}};", "use crate as root;\nfn f() { root::b::g() }",
                     "macro_rules! m { () => { $crate::b::g() } }",
                     "mod inner { use super::super::b::B; }", "#[cfg(not(test))] use crate::b::B;"):
            with self.subTest(line):
                self.refuse({"lib.rs": "mod a;\nmod b;", "a.rs": line, "b.rs": ""},
                            "a uses b, which comes after it")

    def test_a_use_of_a_later_file_by_way_of_a_re_export(self):
        for line in ("pub use b::B;", "pub use b::*;", "pub(crate) use b::B;"):
            with self.subTest(line):
                self.refuse({"lib.rs": f"mod a;\nmod b;\n{line}", "a.rs": "use crate::B;",
                             "b.rs": "pub struct B;"}, "a uses b, which comes after it")

    def test_a_use_of_a_later_file_by_way_of_a_name(self):
        self.refuse({"lib.rs": "mod a;\nmod c;\nmod room;", "a.rs": "",
                     "room/mod.rs": "pub mod b;", "room/b.rs": "",
                     "c.rs": "use crate::a;\nuse crate::room as r;\nfn f() { r::b::g() }"},
                    "c uses room, which comes after it", "c uses room::b, which comes after it")

    def test_siblings_in_a_cycle(self):
        self.refuse({"lib.rs": "mod a;\nmod b;", "a.rs": "use crate::b::B;",
                     "b.rs": "use crate::a::A;"},
                    "a uses b, which comes after it", "cycle: a -> b -> a")

    def test_a_parent_and_a_child_that_use_each_other(self):
        for line in ("use child::Child;", "use self::child::Child;", "use crate::room::child;",
                     "fn f() { child::g() }", "fn f() { self::child::g() }",
                     "pub use child::Child;\nfn f(c: Child) {}",
                     "pub use child::*;\nfn f() { crate::room::Child }"):
            with self.subTest(line):
                self.refuse(ROOM | {"room/mod.rs": f"mod child;\npub struct Held;\n{line}",
                                    "room/child.rs": "use super::Held;\npub struct Child(Held);"},
                            "cycle: room -> room::child -> room")

    def test_the_root_and_a_file_that_use_each_other(self):
        self.refuse({"lib.rs": "mod a;\nuse a::A;\npub struct Held;\nfn f(a: A) {}",
                     "a.rs": "use crate::Held;\npub struct A;"}, "cycle: lib.rs -> a -> lib.rs")

    def test_a_cycle_by_way_of_others(self):
        self.refuse(ROOM | {"room/mod.rs": "mod one;\nmod two;\npub struct Held;\n"
                                           "fn f() { two::g() }",
                            "room/child.rs": "", "room/one.rs": "use super::Held;",
                            "room/two.rs": "use super::one::One;"},
                    "room::child is declared nowhere",
                    "cycle: room -> room::two -> room::one -> room")

    def test_one_line_for_each_cycle(self):
        self.refuse({"lib.rs": "mod a;\nmod b;\nmod c;", "a.rs": "use crate::b;",
                     "b.rs": "use crate::{a, c};", "c.rs": "use crate::b;"},
                    "a uses b, which comes after it", "b uses c, which comes after it",
                    "cycle: a -> b -> a (3 files, with c)")

    def test_a_crate_without_a_root(self):
        self.refuse({"a.rs": ""}, "there is neither lib.rs nor main.rs")


if __name__ == "__main__":
    unittest.main()
