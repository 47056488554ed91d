import unittest

from words import count_words


class Words(unittest.TestCase):
    def test_any_whitespace(self):
        self.assertEqual(count_words("a  b\n c"), 3)

    def test_none(self):
        self.assertEqual(count_words(""), 0)
