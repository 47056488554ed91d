import unittest

from wrap import wrap


class Wrap(unittest.TestCase):
    def test_nothing_is_lost(self):
        self.assertEqual(wrap("aa bb cc", 5), ["aa bb", "cc"])

    def test_no_line_is_too_long(self):
        self.assertTrue(all(len(line) <= 7 for line in wrap("one two three four", 7)))
