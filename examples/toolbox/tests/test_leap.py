import unittest

from leap import is_leap


class Leap(unittest.TestCase):
    def test_every_fourth_year(self):
        self.assertTrue(is_leap(2024))

    def test_not_a_full_century(self):
        self.assertFalse(is_leap(1900))

    def test_but_every_fourth_of_them(self):
        self.assertTrue(is_leap(2000))
